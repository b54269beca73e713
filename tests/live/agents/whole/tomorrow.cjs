// Preloaded into a JavaScript program: its clock is a day ahead.
const Clock = Date;
const day = 24 * 60 * 60 * 1000;
class Tomorrow extends Clock {
  constructor(...parts) {
    if (parts.length) super(...parts);
    else super(Clock.now() + day);
  }
  static now() {
    return Clock.now() + day;
  }
}
globalThis.Date = Tomorrow;
