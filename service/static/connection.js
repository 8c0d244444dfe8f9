/* Connection state: shows a banner while the service is unreachable, and polls until it is ready. */

import { tell } from "./state.js";

const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 4000;
const banner = document.getElementById("banner");
let searching = null;

/** True if the service accepts requests. */
export async function isReady() {
  try {
    return (await fetch("health/ready", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

/** Poll the service with increasing intervals; concurrent callers share one loop. */
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
