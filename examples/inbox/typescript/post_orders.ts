// POST /orders with an Idempotency-Key: order, event and response are stored in one transaction, once for each key.
import { createServer, type IncomingMessage } from "node:http";
import { buffer } from "node:stream/consumers";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 3000 });
const begin = "SELECT outcome, token, status, headers, body FROM outbox_router.idempotency_begin($1, $2, sha256($3))";
const finish = "SELECT outbox_router.idempotency_finish($1, $2, $3, 201, $4, $5)";
const placeOrder = `WITH placed AS (INSERT INTO orders (customer, total)
    SELECT o->>'customer', (o->>'total')::numeric FROM (SELECT $1::jsonb) AS request (o) RETURNING *
  ), event AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', id, 'order.placed', jsonb_build_object('orderId', id, 'customer', customer) FROM placed
  ) SELECT id FROM placed`;
type Response = { status: number; headers: Record<string, string>; body: Buffer };

function problem(status: number, title: string, headers: Record<string, string> = {}): Response {
  return { status, headers: { ...headers, "Content-Type": "application/problem+json" }, body: Buffer.from(JSON.stringify({ title })) };
}

async function respond(client: pg.PoolClient, request: IncomingMessage, body: Buffer): Promise<Response> {
  // A proxy authenticates the caller and sets X-User. Nobody gets the response of another caller.
  const scope = `${request.headers["x-user"]} POST /orders`;
  const keys = request.headersDistinct["idempotency-key"] ?? [];
  const key = keys.length === 1 ? keys[0] : "";
  const { rows } = await client.query(begin, [scope, key, Buffer.concat([Buffer.from("POST /orders "), body])]);
  const { outcome, token, ...stored } = rows[0];
  if (outcome === "replay") return { ...stored, headers: { ...stored.headers, "Idempotent-Replayed": "true" } };
  if (outcome === "in_progress") return problem(409, "The first request with this key has not ended", { "Retry-After": "1" });
  if (outcome === "mismatch") return problem(409, "Idempotency key reused with different request body");
  if (outcome === "expired") return problem(410, "The idempotency key has expired; use a new one for a new request");
  const placed = await client.query(placeOrder, [body.toString()]);
  const [headers, answer] = [{ "Content-Type": "application/json" }, Buffer.from(JSON.stringify({ orderId: Number(placed.rows[0].id) }))];
  await client.query(finish, [scope, key, token, headers, answer]);
  return { status: 201, headers, body: answer };
}

async function inTransaction(request: IncomingMessage): Promise<Response> {
  const [body, client] = [await buffer(request), await pool.connect()];
  try {
    await client.query("BEGIN");
    const response = await respond(client, request, body);
    await client.query("COMMIT");
    client.release();
    return response;
  } catch (error) {
    client.release(true); // closes the connection, which rolls back, so that a retry runs again
    const { code = "", message } = error as pg.DatabaseError;
    return /^2[23]/.test(code) ? problem(400, message) : problem(503, "Repeat the request", { "Retry-After": "1" });
  }
}

pool.on("error", (error) => console.error(error.message)); // an idle connection has ended
createServer((request, response) => {
  void inTransaction(request).catch(() => problem(503, "Repeat the request", { "Retry-After": "1" }))
    .then(({ status, headers, body }) => response.writeHead(status, headers).end(body));
}).listen(Number(process.env.PORT), "127.0.0.1");
