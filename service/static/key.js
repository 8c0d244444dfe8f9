/* The API key: asked for once, when the service wants one, and kept for this tab only. */

import { keep, kept } from "./state.js";

const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key");
const opener = document.getElementById("key-button");
let asking = null;
let declined = false;

/** Whether there is a new key to try; all who ask meanwhile wait for the same answer. */
export function askForKey() {
  opener.hidden = false;
  if (declined) return Promise.resolve(false);
  asking ??= open().finally(() => (asking = null));
  return asking;
}

function open() {
  input.value = kept("key");
  dialog.returnValue = "";
  dialog.showModal();
  input.select();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        declined = dialog.returnValue !== "use" || !input.value.trim();
        if (!declined) keep("key", input.value.trim());
        resolve(!declined);
      },
      { once: true },
    );
  });
}

opener.addEventListener("click", async () => {
  declined = false;
  if (!dialog.open && (await askForKey())) location.reload();
});
