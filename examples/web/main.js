/* Completions in both fields of the form. */

import { attachAutocomplete } from "http://127.0.0.1:8000/static/autocomplete.js";

const output = document.querySelector("output");
const onError = (error) => (output.value = `No completions: ${error.message}`);

for (const field of document.querySelectorAll("input, textarea"))
  attachAutocomplete(field, { fields: { limit: 4, min_probability: 0.01 }, onError });

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  output.value = "Thank you. This form sends nothing.";
});
