/* The API page: Swagger UI over /openapi.json, with the key that the playground keeps for this tab. */

import { openapi } from "./api.js";
import { kept } from "./state.js";

/** Names a variable in place of the key in the commands that Swagger UI shows to be copied. */
const WithoutKey = () => ({
  wrapComponents: {
    curl:
      (Curl, { React }) =>
      (props) => {
        const name = "Bearer $GRAMOPHONE_API_KEY";
        const hasKey = props.request.hasIn(["headers", "Authorization"]);
        const request = hasKey ? props.request.setIn(["headers", "Authorization"], name) : props.request;
        return React.createElement(Curl, { ...props, request });
      },
  },
});

/** Send no options in the address beside a body of JSON, where they stand in the body: those are of lines. */
function requestInterceptor(request) {
  if (request.headers["Content-Type"] === "application/json") request.url = request.url.split("?")[0];
  return request;
}

/** Show the page, below whatever address the service is served at. */
async function show() {
  const description = await openapi();
  const page = window.SwaggerUIBundle({
    domNode: document.getElementById("docs"),
    spec: { ...description, servers: [{ url: new URL(".", document.baseURI).href }] },
    deepLinking: true,
    validatorUrl: null,
    plugins: [WithoutKey],
    requestInterceptor,
    onComplete: () => kept("key") && page.preauthorizeApiKey("key", kept("key")),
  });
}

show().catch((error) => (document.getElementById("docs").textContent = error.message));
