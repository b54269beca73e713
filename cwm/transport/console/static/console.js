// Times in the reader's zone, and buttons that copy a command. Every page works without this.

const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

for (const time of document.querySelectorAll("time[datetime]")) {
  const at = new Date(time.dateTime);
  if (Number.isNaN(at.getTime())) continue;
  time.title = whole.format(at);
  if (time.textContent.endsWith("UTC")) time.textContent = short.format(at);
}

if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const words = button.firstChild;
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        words.data = "Copied";
      } catch {
        words.data = "Not copied";
      }
      setTimeout(() => { words.data = "Copy"; }, 1500);
    });
  }
}
