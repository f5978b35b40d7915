// Whose browser is in another zone than the site reads its own times: the zone goes into a cookie, once.
const NAME = "carme-zone";
const prefix = new URL("..", import.meta.url).pathname;
const kept = () => decodeURIComponent(document.cookie.split("; ").find((each) => each.startsWith(`${NAME}=`))?.slice(NAME.length + 1) ?? "");

function here() {
  const page = document.getElementById("page-zone");
  const known = kept();
  if (known) return known;
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone || page?.dataset.zone || "UTC";
  document.cookie = `${NAME}=${encodeURIComponent(own)}; path=${prefix}; max-age=31536000; samesite=lax`;
  // The page was written in the site's zone; nothing has been typed into it yet, so it is read again in the reader's.
  if (page?.dataset.fresh && page.dataset.zone !== own && kept()) location.reload();
  return own;
}

/** The zone in which times are shown. */
export const zone = here();
