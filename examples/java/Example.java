import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Scores a text and re-ranks an n-best list with a service, whose address is the argument. */
public class Example {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws Exception {
        System.out.println(post(arguments[0] + "/v1/score", "{\"texts\": [\"Return the value.\"]}"));
        System.out.println(post(arguments[0] + "/v1/rerank", """
            {"weights": {"lm": 0.5, "am": 1.0}, "top": 1, "lists": [{"candidates": [
                {"text": "return a knew list", "features": {"am": -12.1}},
                {"text": "return a new list", "features": {"am": -12.6}}]}]}"""));
    }

    private static String post(String url, String json) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(url)).header("content-type", "application/json")
            .POST(BodyPublishers.ofString(json)).build();
        var reply = CLIENT.send(request, BodyHandlers.ofString());
        if (reply.statusCode() != 200) throw new Exception(reply.statusCode() + " " + reply.body());
        return reply.body();
    }
}
