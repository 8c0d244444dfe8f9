// Search in a site that is opened from a folder: browsers start no workers from files, so the worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.loaded = this.load(new URL(url, document.baseURI).href);
    }

    load(url) {
      const inner = this.frame.contentWindow;
      const run = (address, done) => {
        const script = inner.document.createElement("script");
        Object.assign(script, { src: address, onload: done });
        inner.document.body.append(script);
      };
      inner.postMessage = data => {
        const message = new MessageEvent("message", { data });
        this.onmessage?.(message);
        this.dispatchEvent(message);
      };
      inner.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => new Promise(done => run(one, done))), Promise.resolve());
      return new Promise(done => run(url, done));
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
