// How long a person waits, measured in the page: tests and `make bench` read the measures by their names.
const PREFIX = "sl-workbench:";
const MOST = 200;

function afterPaint(then) {
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = then;
    channel.port2.postMessage(null);
  });
}

// From the start of render to the first frame with the editor in the page.
export function measurePaint(root, start) {
  performance.mark(PREFIX + "render-start", { startTime: start });
  const look = () => {
    if (!root.isConnected) return void requestAnimationFrame(look);
    afterPaint(() => {
      performance.mark(PREFIX + "first-paint");
      performance.measure(PREFIX + "paint", { start, end: performance.now() });
      root.dataset.painted = "true";
    });
  };
  look();
}

// From a key press to the frame behind the one in which its text is highlighted.
export function keyTimer(dom) {
  let pressed = null;
  let count = 0;
  dom.addEventListener("keydown", (event) => (pressed = event.timeStamp), true);
  return () => {
    const start = pressed;
    pressed = null;
    if (start === null) return;
    afterPaint(() => {
      if (count++ === MOST) {
        performance.clearMeasures(PREFIX + "key");
        count = 1;
      }
      performance.measure(PREFIX + "key", { start, end: performance.now() });
    });
  };
}
