// Stores webhooks that are signed as in Standard Webhooks, and answers 200. Workers process them from the queue.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage } from "node:http";
import { buffer } from "node:stream/consumers";
import pg from "pg";

const secret = Buffer.from(process.env.WEBHOOK_SECRET!.replace(/^whsec_/, ""), "base64");
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 3000 });

/** The header, or an empty text if there are none or several. */
function header(request: IncomingMessage, name: string): string {
  const values = request.headersDistinct[name] ?? [];
  return values.length === 1 ? values[0]! : "";
}

function isSigned(request: IncomingMessage, body: Buffer): boolean {
  const timestamp = header(request, "webhook-timestamp");
  if (!/^\d{1,12}$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) return false;
  // The id is signed too. Otherwise anybody could send the body again under another id.
  const mac = createHmac("sha256", secret).update(`${header(request, "webhook-id")}.${timestamp}.`).update(body);
  const expected = Buffer.from(`v1,${mac.digest("base64")}`);
  return header(request, "webhook-signature").split(" ").some((text) => {
    const signature = Buffer.from(text);
    return signature.length === expected.length && timingSafeEqual(signature, expected);
  });
}

async function receive(request: IncomingMessage): Promise<[number, object]> {
  const body = await buffer(request);
  if (!isSigned(request, body)) return [401, { status: "error", detail: "the signature is wrong or too old" }];
  const put = "SELECT outbox_router.inbox_put('payments', $1, $2) AS outcome";
  const { rows } = await pool.query(put, [header(request, "webhook-id"), body]);
  // Never an error for a duplicate, or the sender repeats it until it gives up.
  return [200, rows[0].outcome === "duplicate" ? { status: "ok", already_processed: true } : { status: "ok" }];
}

pool.on("error", (error) => console.error(error.message)); // an idle connection has ended
const server = createServer((request, response) => {
  const failed = (error: Error): [number, object] => {
    console.error(error.message);
    return [503, { status: "error", detail: "try again later" }];
  };
  void receive(request).catch(failed).then(([status, content]) => {
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(content));
  });
});
server.listen(Number(process.env.PORT), "127.0.0.1");
