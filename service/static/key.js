/* API key: requested once, if the service requires one, and stored for this tab only. */

import { keep, kept } from "./state.js";

const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key");
const opener = document.getElementById("key-button");
let asking = null;
let declined = false;

/** Resolve to true if the user entered a key; concurrent callers share one dialog. */
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
