/* Server-sent events of an answer that is read as it comes. */

import { ApiError } from "./api.js";

/** The JSON of each event, up to [DONE]; an event that is an error is thrown. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError({ message: "the answer broke off" });
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue; // a comment that keeps the connection alive
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
