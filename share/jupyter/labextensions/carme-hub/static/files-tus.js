/* One upload by the protocol tus 1.0, in chunks that the server has on its disk before the next one is sent. After an
   error it asks how much has arrived and goes on there. It needs nothing of a page, so tests run it in Node. */

/** Bytes of a chunk; seconds between tries, of which the last is repeated; how often nothing may arrive in between. */
export const CHUNK = 32 << 20, PAUSES = [1, 2, 5, 10, 20, 30], MOST_FAILURES = 40;
/** Answers after which another try would get the same one. */
const FINAL = new Set([400, 401, 403, 404, 405, 410, 412, 413, 415]);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const base64 = (value) => btoa(String.fromCharCode(...(value instanceof Uint8Array ? value : new TextEncoder().encode(value))));

/** The bytes of a percent-encoded path, which need not be UTF-8. */
export function bytesOf(quoted) {
  const raw = quoted.replace(/%([0-9A-F]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

/** Upload-Metadata of some values, each a text or bytes. */
export function metadata(values) {
  return Object.entries(values).filter(([, value]) => value).map(([name, value]) => `${name} ${base64(value)}`).join(",");
}

/** How one file is known again: what the browser says of it, and where it goes. */
export function fingerprint(file, folder) {
  return ["carme-upload", folder, file.webkitRelativePath || file.name, file.size, file.lastModified].join("|");
}

export class TusUpload {
  /** file: a File or Blob. url: of the server's uploads. values: the metadata. options: fetch, storage, key, report
      (offset, length, problem), wait (seconds, signal), headers (a function), sha256 (bytes → Base64 or null). */
  constructor(file, url, values, options = {}) {
    Object.assign(this, { file, url, values, options, offset: 0, stopped: new AbortController() });
    this.location = options.location || options.storage?.getItem(options.key) || "";
  }

  /** Send the file; resolve with the answer's name of it, reject with why not. */
  async run() {
    let failures = 0;
    for (;;) {
      try {
        return await this.once((moved) => { if (moved) failures = 0; });
      } catch (error) {
        if (this.stopped.signal.aborted) throw new Error("Paused.");
        const forgotten = this.location && (error.status === 404 || error.status === 410);
        if (forgotten) this.forget(); // it was cancelled, or has expired: from the start
        else if (FINAL.has(error.status) || error.status === 507 || (error.status === 409 && !this.location)) throw error;
        failures += 1;
        if (failures > MOST_FAILURES) throw error;
        this.options.report?.(this.offset, this.file.size, `${error.message} Trying again.`);
        await this.wait(PAUSES[Math.min(failures - 1, PAUSES.length - 1)]);
      }
    }
  }

  async once(moved) {
    if (!this.location) await this.create();
    else {
      const answer = await this.ask("HEAD", this.location, {});
      this.offset = Number(answer.headers.get("Upload-Offset"));
      if (Number(answer.headers.get("Upload-Length")) !== this.file.size) {
        this.forget();
        return this.once(moved);
      }
    }
    let name = null;
    this.options.report?.(this.offset, this.file.size, "");
    while (this.offset < this.file.size) {
      const chunk = this.file.slice(this.offset, Math.min(this.offset + CHUNK, this.file.size));
      const headers = { "Content-Type": "application/offset+octet-stream", "Upload-Offset": String(this.offset) };
      const digest = await this.options.sha256?.(await chunk.arrayBuffer());
      if (digest) headers["Upload-Checksum"] = `sha256 ${digest}`;
      const answer = await this.ask("PATCH", this.location, headers, chunk);
      const offset = Number(answer.headers.get("Upload-Offset"));
      moved(offset > this.offset);
      this.offset = offset;
      name = answer.headers.get("Carme-File-Name");
      this.options.report?.(this.offset, this.file.size, "");
    }
    this.forget();
    return name ? new TextDecoder().decode(Uint8Array.from(atob(name), (c) => c.charCodeAt(0))) : "";
  }

  async create() {
    const headers = { "Upload-Length": String(this.file.size), "Upload-Metadata": metadata(this.values) };
    const answer = await this.ask("POST", this.url, headers);
    this.location = answer.headers.get("Location");
    this.offset = 0;
    try {
      this.options.storage?.setItem(this.options.key, this.location);
    } catch { /* a browser that stores nothing: the upload goes on while the page is open */ }
  }

  forget() {
    this.location = "";
    try {
      this.options.storage?.removeItem(this.options.key);
    } catch { /* as above */ }
  }

  /** Stop sending; what has arrived stays. */
  pause() {
    this.stopped.abort();
  }

  /** Stop, and have the server remove what has arrived. */
  async cancel() {
    const location = this.location;
    this.pause();
    this.stopped = new AbortController();
    if (location) await this.ask("DELETE", location, {}).catch((error) => { if (error.status !== 404) throw error; });
    this.stopped.abort();
    this.forget();
  }

  async ask(method, url, headers, body) {
    const all = { "Tus-Resumable": "1.0.0", ...this.options.headers?.(), ...headers };
    const options = { method, headers: all, body, credentials: "same-origin", signal: this.stopped.signal };
    let answer;
    try {
      answer = await (this.options.fetch ?? fetch)(url, options);
    } catch (error) {
      if (this.stopped.signal.aborted) throw error;
      throw new Refused(0, "The server does not answer.");
    }
    if (answer.ok) return answer;
    const text = method === "HEAD" ? "" : (await answer.text().catch(() => "")).trim();
    const plain = (answer.headers.get("Content-Type") ?? "").startsWith("text/plain");
    throw new Refused(answer.status, (plain && text.slice(0, 500)) || `The server answered ${answer.status}.`);
  }

  wait(seconds) {
    if (this.options.wait) return this.options.wait(seconds);
    return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}
