/* Work that follows typing: begun in an animation frame, one at a time, the newest input only. */

import { ApiError } from "./api.js";
import { events } from "./state.js";

export class Latest {
  #task;
  #onError;
  #frame = 0;
  #controller = null;
  #failed = false;

  /** `task(signal)` is asynchronous; `onError(error)` is told what went wrong, null once it goes well. */
  constructor(task, onError = () => {}) {
    this.#task = task;
    this.#onError = onError;
    events.addEventListener("back", () => this.#controller === null && this.#failed && this.ask());
  }

  /** Do it for what there is now; what is under way is of no use any more. */
  ask() {
    this.cancel();
    this.#frame = requestAnimationFrame(() => this.#run());
  }

  cancel() {
    cancelAnimationFrame(this.#frame);
    this.#controller?.abort();
    this.#controller = null;
  }

  async #run() {
    const controller = new AbortController();
    this.#controller = controller;
    let error = null;
    try {
      await this.#task(controller.signal);
    } catch (thrown) {
      error = thrown;
    }
    if (this.#controller !== controller) return; // a newer one has taken its place
    this.#controller = null;
    if (error !== null && !(error instanceof ApiError)) throw error;
    this.#failed = error?.away ?? false;
    if (error?.code !== "superseded") this.#onError(this.#failed ? null : error);
  }
}
