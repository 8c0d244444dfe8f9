/* Whether the service is there: a quiet banner while it is not, and how it is found again. */

import { tell } from "./state.js";

const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 4000;
const banner = document.getElementById("banner");
let searching = null;

/** Whether it takes requests. */
export async function isReady() {
  try {
    return (await fetch("health/ready", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

/** Look for it with growing patience; all who ask wait for the same search. */
export function reconnect() {
  searching ??= search().finally(() => (searching = null));
  return searching;
}

async function search() {
  banner.hidden = false;
  for (let wait = FIRST_WAIT_MS; !(await isReady()); wait = Math.min(1.6 * wait, LONGEST_WAIT_MS)) {
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  banner.hidden = true;
  tell("back");
}
