// The text as this browser remembers it, for the time behind a restart of the kernel. Some pages may store nothing.
const PREFIX = "sovereign-lab-workbench:";

export function remember(place, kept) {
  try {
    localStorage.setItem(PREFIX + place, JSON.stringify(kept));
  } catch {
    // full, or not allowed here: the kernel and the page have the text still
  }
}

export function remembered(place) {
  try {
    const kept = JSON.parse(localStorage.getItem(PREFIX + place));
    return typeof kept?.text === "string" ? kept : null;
  } catch {
    return null;
  }
}

export function forget(place) {
  try {
    localStorage.removeItem(PREFIX + place);
  } catch {
    // then there is nothing to forget
  }
}
