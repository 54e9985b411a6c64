// The list of runs, the form for a new scan, and the progress of the running scan.

const chosen = new Set();
let token = null;
let followed = null;

function announce(text) {
  byId("status").textContent = visible(text);
}

async function ask(address, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Attnscope-Token": token } };
  const answer = await fetch(address, options);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
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
  const state = await ask("/api/runs");
  token = state.token;
  byId("folder").textContent = `In ${visible(state.folder)}`;
  byId("new").hidden = state.read_only;
  for (const name of chosen) if (!state.runs.some((run) => run.name === name && comparable(run))) chosen.delete(name);
  drawRuns(state);
  if (state.running && followed !== state.running.name) follow(state.running.name);
}

/** Whether a run has heads to compare: a reproduction has claims and figures. */
function comparable(run) {
  return run.state === "finished" && run.kind === "scan";
}

function address(name) {
  return `/run/${encodeURIComponent(name)}`;
}

function drawRuns(state) {
  const section = byId("runs");
  if (!state.runs.length) {
    section.replaceChildren(element("p", {}, "No runs yet. Start one below, or with: attnscope scan"));
    return;
  }
  const finished = state.runs.filter(comparable).length;
  const compare = element("button", { type: "button", id: "compare", disabled: chosen.size !== 2, onclick: () => { const [a, b] = [...chosen]; location.assign(`/compare?${new URLSearchParams({ a, b })}`); } }, "Compare the two chosen runs");
  const header = ["", "run", "model", "text", "measured", "finished", ""].map((text) => element("th", { scope: "col" }, text));
  section.replaceChildren(
    element("div", { class: "scroll" }, element("table", { class: "runs" }, element("thead", {}, element("tr", {}, header)), element("tbody", {}, state.runs.map((run) => runLine(run, state))))),
    finished > 1 ? element("p", {}, compare, element("span", { class: "soft" }, " Choose two runs by their boxes.")) : "",
  );
}

function runLine(run, state) {
  const done = run.state === "finished";
  const box = element("input", { type: "checkbox", "aria-label": `Choose ${visible(run.name)} for comparison`, checked: chosen.has(run.name), onchange: (event) => { if (event.target.checked) chosen.add(run.name); else chosen.delete(run.name); byId("compare").disabled = chosen.size !== 2; } });
  const name = done ? element("a", { href: address(run.name) }, visible(run.name)) : visible(run.name);
  const resume = element("button", { type: "button", onclick: attempt(() => go(run.name, "resume")) }, "Resume");
  const summary = { finished: run.settings, stopped: `${run.kind === "reproduction" ? "reproduction, " : ""}stopped: ${run.finished_windows} of ${run.windows} windows finished`, unreadable: "cannot be read" }[run.state];
  const files = run.kind === "scan" ? ["rows.parquet", "topn.parquet", "run.json"] : ["claims.md", "claims.json", "run.json"];
  const downloads = done ? files.map((file) => [element("a", { href: `${address(run.name)}/${file}` }, file), " "]) : [];
  return element(
    "tr", {},
    element("td", {}, comparable(run) ? box : ""), element("th", { scope: "row" }, name), element("td", { class: "long", title: visible(run.model) }, shortName(run.model)), element("td", { class: "long", title: visible(run.text) }, shortName(run.text)),
    element("td", { class: run.state }, summary, run.verdict ? element("div", { class: "soft" }, visible(run.verdict)) : null), element("td", {}, run.finished.slice(0, 16).replace("T", " ")),
    element("td", { class: "actions" }, run.state === "stopped" && state.resumable.includes(run.name) && !state.read_only ? resume : "", downloads),
  );
}

async function go(name, act) {
  const job = await ask(`/api/scans/${encodeURIComponent(name)}/${act}`, {});
  if (act === "resume") follow(job.name);
}

/** Show the progress of a scan until it ends. */
async function follow(name) {
  followed = name;
  byId("cancel").onclick = attempt(() => go(name, "cancel"));
  byId("cancel").disabled = false;
  byId("start").disabled = true;
  byId("progress").hidden = false;
  let job = { state: "running" };
  while (job.state === "running") {
    try {
      job = await ask(`/api/scans/${encodeURIComponent(name)}`);
    } catch {
      announce("The server no longer responds.");
      break;
    }
    byId("progress-words").textContent = `${visible(name)}: ${job.activity}`;
    if (job.total) Object.assign(byId("progress-bar"), { max: job.total, value: job.done });
    else byId("progress-bar").removeAttribute("value");
    if (job.state === "running") await new Promise((later) => setTimeout(later, 300));
  }
  byId("progress").hidden = true;
  byId("start").disabled = false;
  followed = null;
  const ends = { finished: `${name} is finished.`, cancelled: `${name} was cancelled.`, failed: `${name} failed: ${job.error}` };
  if (ends[job.state]) announce(ends[job.state]);
  await refresh();
}

byId("form").addEventListener("submit", attempt(async (event) => {
  announce("");
  const job = await ask("/api/scans", Object.fromEntries(new FormData(event.target)));
  follow(job.name);
}));

// Verification needs a diagnosis.
byId("verify").addEventListener("change", (event) => { if (event.target.checked) byId("diagnose").checked = true; });
byId("diagnose").addEventListener("change", (event) => { if (!event.target.checked) byId("verify").checked = false; });

attempt(refresh)();
