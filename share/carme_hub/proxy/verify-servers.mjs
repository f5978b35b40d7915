// Lets configurable-http-proxy reach, at every connection, only the server that a route is meant for.
//
// Loaded by Node before the proxy itself (`NODE_OPTIONS=--import=file:///…/verify-servers.mjs`). The proxy alone checks
// that an authority of the hub has signed what a server shows, and that it names the host *that the visitor's request
// names*. Every session has such a certificate, so whoever listens at a session's address could pass for its server;
// and a hub with a name in DNS could not be reached at all. Here:
//
// - A target may end in `#certificate=SHA256`: then the certificate shown must be that very one (the fingerprint of its
//   DER form, in hex). Nothing is sent before the handshake is over and this has been checked.
// - A target without it must show a certificate that names the target's own host, whatever the request says.
// - Connections are kept for one certificate each, so none that was opened to a session serves another one.
// - A stored route says `"verified": "certificate"` where this program checks it: the hub can tell it from a plain proxy,
//   which ignores what comes after the `#`.
// - A request for the hub or a service waits while nobody listens there, or nobody ends the handshake: for a restart, an
//   upgrade, or a take-over by the second hub. Nothing of it was sent before, so it is served once and not twice. Checks
//   by load balancers do not wait, and nor do sessions: a server that is gone does not come back to its port.
//
// - An upload may take as long as it needs: Node would end each request that is not complete after five minutes.
//
// Releases of the proxy: 5.x, by two methods of its class; where they are missing the proxy does not start.

import { realpathSync } from "node:fs";
import https from "node:https";
import { isIP } from "node:net";
import { checkServerIdentity } from "node:tls";
import { pathToFileURL } from "node:url";

// The proxy puts a slash after the target of its error pages.
const CERTIFICATE = /^#certificate=([0-9a-f]{64})\/?$/;

// Seconds for which a request waits for the hub: below the minute that load balancers and nginx give it.
const WAIT = Number(process.env.CARME_PROXY_WAIT ?? 50) * 1000;
// Between two tries, and for the handshake of one: a frozen host takes connections and answers nothing.
const PAUSE = 500;
const HANDSHAKE = 10_000;
const NOBODY_THERE = new Set(["ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "EPIPE", "ETIMEDOUT"]);
// Milliseconds for the body of a request; its head has a minute, as ever.
const BODY = 86_400_000;
const CHECK = /\/hub\/(health|ready)(\?|$)/;

// The certificate that a target asks for: null where it asks for none, "" where it cannot be understood and none fits.
function wanted(target) {
  const at = String(target).indexOf("#");
  if (at < 0) return null;
  const found = CERTIFICATE.exec(String(target).slice(at));
  return found ? found[1] : "";
}

function fingerprint(certificate) {
  return (certificate.fingerprint256 || "").replaceAll(":", "").toLowerCase();
}

class TargetAgent extends https.Agent {
  constructor(certificate) {
    // Without stored TLS sessions every connection shows its certificate anew.
    super({ keepAlive: true, maxCachedSessions: 0 });
    this.certificate = certificate;
  }

  addRequest(request, options, ...more) {
    // Node would take the name from the request's Host header, which is the visitor's to choose.
    const host = options.host;
    options.servername = isIP(host) ? "" : host;
    options.checkServerIdentity = (_name, shown) => {
      if (this.certificate === null) return checkServerIdentity(host, shown);
      if (fingerprint(shown) === this.certificate) return undefined;
      const error = new Error("Whoever listens at the address does not show the certificate of the session");
      error.code = "ERR_TLS_CERT_ALTNAME_INVALID";
      error.stack = error.message; // the proxy logs it for every visitor
      return error;
    };
    return super.addRequest(request, options, ...more);
  }
}

class WaitingAgent extends TargetAgent {
  addRequest(request, options, ...more) {
    options.until = CHECK.test(request.path) ? 0 : Date.now() + WAIT;
    return super.addRequest(request, options, ...more);
  }

  createConnection(options, callback) {
    const attempt = () => {
      const line = super.createConnection(options);
      const late = Object.assign(new Error("The hub does not answer"), { code: "ETIMEDOUT" });
      const limit = setTimeout(() => line.destroy(late), HANDSHAKE);
      const failed = (error) => {
        clearTimeout(limit);
        if (NOBODY_THERE.has(error.code) && Date.now() + PAUSE < options.until) setTimeout(attempt, PAUSE);
        else callback(error);
      };
      line.once("error", failed);
      line.once("secureConnect", () => {
        clearTimeout(limit);
        line.removeListener("error", failed);
        callback(null, line);
      });
    };
    attempt();
  }
}

function verify(ConfigurableProxy) {
  if (!(WAIT >= 0)) {
    throw new Error(`CARME_PROXY_WAIT is ${process.env.CARME_PROXY_WAIT}; set seconds, such as 50, or 0 for no wait`);
  }
  const { proxyOptsForTarget, addRoute, removeRoute } = ConfigurableProxy.prototype;
  for (const method of [proxyOptsForTarget, addRoute, removeRoute]) {
    if (typeof method !== "function") {
      throw new Error("This release of configurable-http-proxy is not known to Carme Hub; install release 5");
    }
  }
  const agents = new Map();
  const restarting = new Map(); // the targets that come back, by the path of their route

  function agentOf(certificate, waits) {
    const key = `${certificate} ${waits}`;
    if (!agents.has(key)) agents.set(key, new (waits ? WaitingAgent : TargetAgent)(certificate));
    return agents.get(key);
  }

  ConfigurableProxy.prototype.proxyOptsForTarget = function (target) {
    const options = proxyOptsForTarget.call(this, target);
    if (options.secure) {
      options.agent = agentOf(wanted(target), [...restarting.values()].includes(String(target)));
      options.target.agent = options.agent; // of a request for an error page, which takes nothing else
    }
    return options;
  };

  // A connection in use goes on, since it leads where it did; idle ones of a route that is no more are closed.
  function forget(route) {
    const certificate = route ? wanted(route.target) : null;
    if (certificate === null) return;
    for (const key of [`${certificate} true`, `${certificate} false`]) {
      const agent = agents.get(key);
      if (agent === undefined) continue;
      agents.delete(key);
      agent.keepAlive = false;
      for (const sockets of Object.values(agent.freeSockets)) [...sockets].forEach((socket) => socket.destroy());
    }
  }

  ConfigurableProxy.prototype.addRoute = async function (path, data) {
    if (this.proxyServer) this.proxyServer.requestTimeout = BODY;
    const own = this._routes.cleanPath(path);
    const comesBack = own === "/" || data.hub || data.service;
    if (comesBack && URL.canParse(data.target)) restarting.set(own, String(new URL(data.target)));
    else restarting.delete(own);
    const before = await this._routes.get(own);
    delete data.verified;
    if (wanted(data.target) !== null) data.verified = "certificate";
    const answer = await addRoute.call(this, path, data);
    if (before && before.target !== data.target) forget(before);
    return answer;
  };

  ConfigurableProxy.prototype.removeRoute = async function (path) {
    const own = this._routes.cleanPath(path);
    restarting.delete(own);
    const before = await this._routes.get(own);
    const answer = await removeRoute.call(this, path);
    forget(before);
    return answer;
  };
}

if (process.argv[1]) {
  const main = pathToFileURL(realpathSync(process.argv[1]));
  verify((await import(new URL("../lib/configproxy.js", main))).default);
}
