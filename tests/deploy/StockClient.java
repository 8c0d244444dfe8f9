import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Calls a service with the JDK's HTTP client, which offers h2c with each request. Prints a line for each reply:
 * the kind of request, the status and whether it has a score, or the last line of a stream.
 */
public class StockClient {
    private static final String SCORE = "{\"texts\": [\"the cat sat\"]}";
    private static final String STREAM = "{\"max_tokens\": 20, \"ignore_eos\": true, \"stream\": true}";

    private final HttpClient client = HttpClient.newHttpClient();
    private final String url;

    private StockClient(String url) {
        this.url = url;
    }

    public static void main(String[] arguments) throws Exception {
        StockClient asking = new StockClient(arguments[0]);
        byte[] large = (SCORE + " ".repeat(1_000_000)).getBytes();
        for (int round = 0; round < 3; round++) {
            asking.ask("small", BodyPublishers.ofString(SCORE), false);
            asking.ask("large", BodyPublishers.ofByteArray(large), false);
            asking.ask("chunked", BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(large)), false);
            asking.ask("awaited", BodyPublishers.ofByteArray(large), true);
            asking.stream();
        }
    }

    private void ask(String what, BodyPublisher body, boolean awaited) throws Exception {
        HttpRequest request = to("/v1/score").expectContinue(awaited).POST(body).build();
        var answer = client.send(request, BodyHandlers.ofString());
        System.out.println(what + " " + answer.statusCode() + " " + answer.body().contains("logprob"));
    }

    private void stream() throws Exception {
        HttpRequest request = to("/v1/generate").POST(BodyPublishers.ofString(STREAM)).build();
        var answer = client.send(request, BodyHandlers.ofLines());
        List<String> events = answer.body().filter(line -> !line.isEmpty()).collect(Collectors.toList());
        System.out.println("stream " + answer.statusCode() + " " + events.get(events.size() - 1));
    }

    private HttpRequest.Builder to(String path) {
        return HttpRequest.newBuilder(URI.create(url + path)).header("Content-Type", "application/json");
    }
}
