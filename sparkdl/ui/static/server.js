// Ask the server. The token is in the address of the page, after "#", and leaves it at once: an
// address that is copied from the browser then has no secret.

let token = "";

// A page in a frame of a notebook may not be allowed to store anything.
const stored = (value) => {
  try {
    if (value) sessionStorage.setItem("token", value);
    return sessionStorage.getItem("token") || "";
  } catch {
    return "";
  }
};

export const takeToken = () => {
  const [place, query] = location.hash.split("?");
  const given = new URLSearchParams(query).get("token");
  if (given) history.replaceState(null, "", place || "#/");
  token = stored(given) || given || token;
};

export const ask = async (path, options = {}) => {
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const response = await fetch(path, { ...options, headers });
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(value.error || response.statusText);
  return value;
};

// An order is an object, or already JSON.
export const tell = (path, order) => ask(path, {
  method: "POST",
  body: typeof order === "string" ? order : JSON.stringify(order),
  headers: { "Content-Type": "application/json" },
});

export const address = (...parts) => ["api", ...parts].map(encodeURIComponent).join("/");
