/* API page: Swagger UI over /openapi.json, with the API key that the playground stores for this tab. */

import { openapi } from "./api.js";
import { kept } from "./state.js";

/** Replace the key by a variable in the curl commands that Swagger UI shows. */
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

/** Remove query options from requests with a JSON body; only JSON-lines requests take options in the URL. */
function requestInterceptor(request) {
  if (request.headers["Content-Type"] === "application/json") request.url = request.url.split("?")[0];
  return request;
}

/** Show the page; the service may be mounted at any path. */
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
