// Both ends of a measured proxy: the servers of many sessions (`servers`), and their visitors (`visit`).
//
//   node proxy_ends.mjs servers FOLDER COUNT     one TLS server for each certificate N.crt, N.key; prints their ports
//   node proxy_ends.mjs visit PORT KIND SESSIONS LINES SECONDS     works for each line on stdin; prints JSON

import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { connect } from "node:net";
import { createInterface } from "node:readline";

const PAGE = Buffer.alloc(2 << 10, "a page ");
const FILE = Buffer.alloc(8 << 20, "a file ");
const MESSAGE = Buffer.alloc(1 << 10, "a message ");
const UPGRADED = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

const [what, ...words] = process.argv.slice(2);

async function servers(folder, count) {
  const ports = [];
  for (let number = 0; number < Number(count); number++) {
    const own = ["key", "crt"].map((kind) => readFileSync(`${folder}/${number}.${kind}`));
    // As jupyterhub-singleuser with internal_ssl: clients show a certificate, too.
    const settings = { key: own[0], cert: own[1], ca: readFileSync(`${folder}/authority.crt`), requestCert: true };
    const server = https.createServer({ ...settings, rejectUnauthorized: true }, (request, response) => {
      const body = request.url.endsWith("/file") ? FILE : PAGE;
      response.writeHead(200, { "Content-Length": body.length });
      response.end(body);
    });
    server.keepAliveTimeout = 120_000;
    // The data of a kernel's websocket, sent back unchanged; a proxy does not parse frames.
    server.on("upgrade", (_request, socket) => {
      socket.setNoDelay(true);
      socket.on("error", () => socket.destroy());
      socket.write(UPGRADED);
      socket.pipe(socket);
    });
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    ports.push(server.address().port);
  }
  console.log(JSON.stringify(ports));
}

function get(agent, port, path) {
  return new Promise((done, failed) => {
    const asked = http.get({ agent, port, host: "127.0.0.1", path, headers: { Cookie: "of=a-visitor" } }, (answer) => {
      let size = 0;
      answer.on("data", (piece) => (size += piece.length));
      answer.on("end", () => (answer.statusCode === 200 ? done(size) : failed(new Error(`${answer.statusCode}`))));
    });
    asked.on("error", failed);
  });
}

function open(port, path) {
  return new Promise((done, failed) => {
    const socket = connect(port, "127.0.0.1", () => {
      socket.setNoDelay(true);
      socket.write(`GET ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n`);
    });
    socket.once("data", (answer) => (String(answer).includes(" 101 ") ? done(socket) : failed(new Error(answer))));
    socket.on("error", failed);
  });
}

function echoed(socket) {
  return new Promise((done) => {
    let size = 0;
    const heard = (piece) => {
      size += piece.length;
      if (size < MESSAGE.length) return;
      socket.off("data", heard);
      done(size);
    };
    socket.on("data", heard);
    socket.write(MESSAGE);
  });
}

async function visit(port, kind, sessions, lines, seconds) {
  const agent = new http.Agent({ keepAlive: true });
  let done = 0;
  let bytes = 0;
  let next = 0;
  const session = () => next++ % sessions;
  const visitors = Array.from({ length: lines }, () => ({ socket: null }));
  async function once(visitor) {
    if (kind === "pages") bytes += await get(agent, port, `/user/${session()}/page`);
    else if (kind === "files") bytes += await get(agent, port, `/user/${session()}/file`);
    else if (kind === "messages") bytes += await echoed(visitor.socket);
    else (await open(port, `/user/${session()}/channels`)).destroy();
    done += 1;
  }
  if (kind === "messages") {
    for (const visitor of visitors) visitor.socket = await open(port, `/user/${session()}/channels`);
  } else {
    for (let number = 0; number < sessions; number++) await get(agent, port, `/user/${number}/page`); // lines are open
  }
  console.log("ready");
  for await (const _ of createInterface({ input: process.stdin })) {
    done = bytes = 0;
    const began = performance.now();
    const end = began + 1000 * seconds;
    await Promise.all(
      visitors.map(async (visitor) => {
        while (performance.now() < end) await once(visitor);
      }),
    );
    console.log(JSON.stringify({ done, bytes, seconds: (performance.now() - began) / 1000 }));
  }
  process.exit(0);
}

if (what === "servers") await servers(...words);
else await visit(Number(words[0]), words[1], ...words.slice(2).map(Number));
