package shop;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

/** The JDK's HTTP server, with several threads. */
final class Server {
    static void start(HttpHandler handler) throws IOException {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/", handler);
        server.start();
    }

    static void answer(HttpExchange request, int status, String type, byte[] body) throws IOException {
        request.getResponseHeaders().set("Content-Type", type);
        request.sendResponseHeaders(status, body.length);
        request.getResponseBody().write(body);
        request.close();
    }
}
