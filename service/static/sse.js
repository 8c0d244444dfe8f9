/* Reader of server-sent events. */

import { ApiError } from "./api.js";

/** Yield the JSON of each event up to [DONE]; throw error events. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError({ message: "the stream ended early" });
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue; // keep-alive comment
        if (part === "data: [DONE]") return;
        const event = JSON.parse(part.slice(6));
        if (event.error) throw new ApiError(event.error, 500);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
