// Whether the page is dark: as JupyterLab says, else VS Code, else the system.
const system = matchMedia("(prefers-color-scheme: dark)");

function dark() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  if (vscodeThemeKind) return vscodeThemeKind.endsWith("dark") || vscodeThemeKind === "vscode-high-contrast";
  return system.matches;
}

// Calls `tell` with "light" or "dark" now and at every change; returns what ends that.
export function watchTheme(tell) {
  const look = () => tell(dark() ? "dark" : "light");
  const observer = new MutationObserver(look);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  system.addEventListener("change", look);
  look();
  return () => {
    observer.disconnect();
    system.removeEventListener("change", look);
  };
}
