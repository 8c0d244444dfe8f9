/* Work triggered by typing: starts in an animation frame, one task at a time, newest input only. */

import { ApiError } from "./api.js";
import { events } from "./state.js";

export class Latest {
  #task;
  #onError;
  #frame = 0;
  #controller = null;
  #failed = false;

  /** `task(signal)` is asynchronous; `onError(error)` gets the error, or null after a success. */
  constructor(task, onError = () => {}) {
    this.#task = task;
    this.#onError = onError;
    events.addEventListener("back", () => this.#controller === null && this.#failed && this.ask());
  }

  /** Run the task for the current input, and cancel the running one. */
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
    if (this.#controller !== controller) return; // replaced by a newer run
    this.#controller = null;
    if (error !== null && !(error instanceof ApiError)) throw error;
    this.#failed = error?.away ?? false;
    if (error?.code !== "superseded") this.#onError(this.#failed ? null : error);
  }
}
