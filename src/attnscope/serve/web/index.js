// The list of runs, the form for a new scan, and the progress of the running scan.

const chosen = new Set();
let token = null;
let listed = null; // the last answer of /api/runs
let followed = null;
const MOST_FILES = 4; // that are linked beside a run

class Refused extends Error {
  constructor({ error, field }) {
    super(error);
    this.field = field;
  }
}

function announce(...content) {
  byId("status").replaceChildren(...content.map((part) => (typeof part === "string" ? visible(part) : part)));
}

async function ask(address, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Attnscope-Token": token } };
  const answer = await fetch(address, options);
  const content = await answer.json();
  if (!answer.ok) throw new Refused(content);
  return content;
}

/** An event handler that runs `work` and reports its errors in the status line. */
function attempt(work) {
  return async (event) => {
    event?.preventDefault();
    try {
      await work(event);
    } catch (error) {
      announce(error.message || String(error));
    }
  };
}

async function refresh() {
  list(await ask("/api/runs"));
}

function list(answer) {
  listed = answer;
  token = listed.token;
  byId("folder").textContent = `In ${visible(listed.folder)}`;
  byId("new").hidden = listed.read_only;
  for (const name of chosen) if (!listed.runs.some((run) => run.name === name && comparable(run))) chosen.delete(name);
  drawRuns();
  if (listed.running && followed !== listed.running.name) follow(listed.running.name);
}

/** Whether a run can be shown beside another of its kind. */
function comparable(run) {
  return run.state === "finished" && run.side_by_side;
}

function address(name) {
  return `/run/${encodeURIComponent(name)}`;
}

/** Whether a run has every word of the filter in its name, model, text or verdict. */
function matches(run) {
  const content = [run.name, run.model, run.text, run.settings, run.verdict, run.reason, run.state, run.kind].join(" ").toLowerCase();
  return byId("filter").value.toLowerCase().split(/\s+/).every((word) => content.includes(word));
}

function drawRuns() {
  const section = byId("runs");
  byId("filtering").hidden = listed.runs.length < 2;
  if (!listed.runs.length) {
    section.replaceChildren(element("p", {}, "No runs yet. Start one below, or with: attnscope scan --diagnose"));
    return;
  }
  const shown = listed.runs.filter(matches);
  byId("shown").textContent = shown.length < listed.runs.length ? `${shown.length} of ${plural(listed.runs.length, "run")}` : plural(shown.length, "run");
  const compare = element("button", { type: "button", id: "compare", disabled: chosen.size !== 2, onclick: () => { const [a, b] = [...chosen]; location.assign(`/compare?${new URLSearchParams({ a, b })}`); } }, "Compare the two chosen runs");
  const header = ["", "Run", "Model", "Text", "Measured", "Finished", ""].map((text) => element("th", { scope: "col" }, text));
  section.replaceChildren(
    shown.length ? element("div", { class: "scroll" }, element("table", { class: "runs" }, element("thead", {}, element("tr", {}, header)), element("tbody", {}, shown.map(runLine)))) : element("p", { class: "soft" }, "No run matches the filter."),
    listed.runs.filter(comparable).length > 1 ? element("p", {}, compare, element("span", { class: "soft" }, " Choose two runs by their boxes.")) : "",
  );
}

function runLine(run) {
  const box = element("input", { type: "checkbox", "aria-label": `Choose ${visible(run.name)} for comparison`, checked: chosen.has(run.name), onchange: (event) => { if (event.target.checked) chosen.add(run.name); else chosen.delete(run.name); byId("compare").disabled = chosen.size !== 2; } });
  const name = run.opens ? element("a", { href: address(run.name) }, visible(run.name)) : visible(run.name);
  const windows = `: ${run.finished_windows.toLocaleString("en")} of ${run.windows.toLocaleString("en")} windows finished`;
  const what = run.windows ? run.kind : `${run.settings},`;
  const summary = { finished: run.settings, training: `${what} going on`, failed: `${what} ended by an error`, running: `${what} running${windows}`, stopped: run.windows ? `${what} stopped${windows}` : `${what} stopped without being closed`, unreadable: "cannot be read" }[run.state];
  const files = run.downloads.filter((file) => !file.endsWith(".html")).slice(0, MOST_FILES);
  const actions = element("div", { class: "actions" });
  showActions(actions, run);
  return element(
    "tr", { "data-run": run.name },
    element("td", {}, comparable(run) ? box : ""), element("th", { scope: "row" }, name), element("td", { class: "long", "data-label": "Model", title: visible(run.model) }, breakable(shortName(run.model))), element("td", { class: "long", "data-label": "Text", title: visible(run.text) }, breakable(shortName(run.text))),
    element("td", { class: run.state }, summary, run.verdict || run.reason ? element("div", { class: "soft" }, visible(run.verdict || run.reason)) : null), element("td", { "data-label": "Finished" }, run.finished.slice(0, 16).replace("T", " ")),
    element("td", {}, actions, run.opens ? element("div", { class: "downloads" }, files.map((file) => [element("a", { href: `${address(run.name)}/${file}` }, file), " "])) : ""),
  );
}

/** A name that breaks after its separators rather than inside a word. */
function breakable(name) {
  return name.split(/(?<=[/_-])/).flatMap((part, k) => (k ? [element("wbr"), part] : [part]));
}

/** The buttons of a run; renaming and deleting ask first, in their place. */
function showActions(place, run) {
  if (listed.read_only || run.state === "running") return;
  const button = (text, work, options = {}) => element("button", { type: "button", onclick: attempt(work), "aria-label": `${text} ${visible(run.name)}`, ...options }, text);
  const back = () => { showActions(place, run); place.querySelector("button").focus(); };
  const rename = () => {
    const field = element("input", { type: "text", "aria-label": `New name of ${visible(run.name)}`, value: run.name, maxlength: 100 });
    const form = element("form", { onsubmit: attempt(() => change(run.name, "rename", { name: field.value })), onkeydown: (event) => { if (event.key === "Escape") back(); } }, field, element("button", { type: "submit" }, "Save"), button("Keep the name", back));
    place.replaceChildren(form);
    field.select();
  };
  const remove = () => {
    const words = `Delete ${plural(run.files, "file")} (${size(run.bytes)}) permanently?`;
    const yes = button("Delete", () => change(run.name, "delete", {}), { class: "danger", "aria-label": `Yes, delete ${visible(run.name)}` });
    place.replaceChildren(element("span", { role: "alert" }, words, " "), yes, button("Keep", back));
    yes.focus();
  };
  place.replaceChildren(
    run.state === "stopped" && listed.resumable.includes(run.name) ? button("Resume", () => resume(run.name)) : "",
    button("Rename", rename), button("Delete", remove),
  );
}

function size(bytes) {
  return bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

async function change(name, act, body) {
  const answer = await ask(`/api/runs/${encodeURIComponent(name)}/${act}`, body);
  await refresh();
  announce(act === "delete" ? `${name} was deleted.` : `${name} is now called ${answer.name}.`);
}

async function resume(name) {
  const job = await ask(`/api/scans/${encodeURIComponent(name)}/resume`, {});
  follow(job.name);
}

function timeLeft(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return seconds < 90 ? `, about ${Math.max(1, Math.round(seconds))} s left` : `, about ${Math.round(seconds / 60)} min left`;
}

/** Show the progress of a scan until it ends; it is brought into view. */
async function follow(name) {
  followed = name;
  announce("");
  byId("cancel").onclick = attempt(() => ask(`/api/scans/${encodeURIComponent(name)}/cancel`, {}));
  byId("start").disabled = true;
  byId("progress").hidden = false;
  byId("now").scrollIntoView({ block: "nearest" });
  byId("progress").focus({ preventScroll: true });
  let job = { state: "running" };
  while (job.state === "running") {
    try {
      job = await ask(`/api/scans/${encodeURIComponent(name)}`);
    } catch {
      announce("The server no longer responds.");
      break;
    }
    byId("progress-words").textContent = `${visible(name)}: ${job.compiling ? "compiling loops that are used for the first time here" : job.activity}${timeLeft(job.seconds_left)}`;
    if (job.total) Object.assign(byId("progress-bar"), { max: job.total, value: job.done });
    else byId("progress-bar").removeAttribute("value");
    if (job.state === "running") await new Promise((later) => setTimeout(later, 300));
  }
  byId("progress").hidden = true;
  byId("start").disabled = false;
  followed = null;
  await refresh();
  if (job.state === "finished") announce(`${name} is finished. `, element("a", { href: address(name) }, "Open its report"));
  if (job.state === "cancelled") announce(`${name} was cancelled.`);
  if (job.state === "failed") announce(`${name} failed: ${job.error}`);
}

/** Mark the field that was refused, with the reason beside it; without one the reason is beside the button. */
function showRefusal(error) {
  for (const marked of document.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
  for (const old of document.querySelectorAll("#form .refusal")) old.remove();
  byId("form-error").textContent = "";
  if (!error) return;
  const field = error.field && byId("form").elements.namedItem(error.field);
  if (!field) {
    byId("form-error").textContent = visible(error.message);
    return;
  }
  field.setAttribute("aria-invalid", "true");
  field.after(element("p", { class: "refusal", role: "alert" }, visible(error.message)));
  field.focus();
}

byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = Object.fromEntries(new FormData(event.target));
  for (const name of ["diagnose", "verify"]) form[name] = byId(name).checked;
  showRefusal(null);
  const start = byId("start");
  start.disabled = true;
  start.textContent = "Checking";
  try {
    follow((await ask("/api/scans", form)).name);
  } catch (error) {
    start.disabled = false;
    showRefusal(error);
  }
  start.textContent = "Start";
});

// Verification needs a diagnosis.
byId("verify").addEventListener("change", (event) => { if (event.target.checked) byId("diagnose").checked = true; });
byId("diagnose").addEventListener("change", (event) => { if (!event.target.checked) byId("verify").checked = false; });
byId("filter").addEventListener("input", drawRuns);

/** Look again at runs that other processes write; not while somebody is at work in the list. */
async function watch() {
  const busy = () => document.hidden || document.querySelector("#runs :focus, .actions form, .actions [role=alert]");
  if (busy()) return;
  const answer = await ask("/api/runs");
  if (!busy() && JSON.stringify(answer) !== JSON.stringify(listed)) list(answer);
}

attempt(refresh)();
setInterval(() => watch().catch(() => {}), 2000); // the server may be back the next time
