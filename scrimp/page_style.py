"""The style of a certificate's page: light and dark, narrow and wide, and on paper."""

STYLE = """
:root { color-scheme: light dark; --back: light-dark(#f6f7f9, #10131a); --card: light-dark(#fff, #181c25);
  --text: light-dark(#1b1f2a, #e7e9ef); --muted: light-dark(#5a6275, #a0a8ba); --line: light-dark(#e0e3ea, #2a303d);
  --good: light-dark(#11703c, #6fd49a); --warn: light-dark(#8a5300, #f2bd63);
  font: 16px/1.5 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); overflow-wrap: anywhere; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem; display: grid; gap: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
p, ul, dl, figure { margin: .4rem 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem; }
ul { padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: 11rem minmax(0, 1fr); gap: .25rem 1rem; }
dt, .kind, .small, footer, figcaption, th { color: var(--muted); }
dd { margin: 0; }
.kind { margin: 0; }
.small, footer, figcaption, th { font-size: .88rem; }
.good { color: var(--good); }
.warn { color: var(--warn); }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; }
th, td { text-align: left; vertical-align: bottom; padding: .35rem .75rem .35rem 0; }
tr { border-bottom: 1px solid var(--line); }
th { font-weight: 500; }
td { font-variant-numeric: tabular-nums; }
td:nth-child(2) { font-weight: 650; }
pre, .fingerprint { font: .86rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; white-space: pre-wrap; }
.code { float: right; margin: 0 0 .5rem 1.25rem; max-width: 11rem; }
.code svg { display: block; width: 10rem; height: 10rem; border-radius: 6px; }
section::after { content: ""; display: block; clear: both; }
@media (min-width: 56rem) { main { grid-template-columns: 1fr 1fr; }
  header, footer, section:nth-of-type(3), section:nth-of-type(n + 6) { grid-column: 1 / -1; } }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .code { float: none; margin-left: 0; } }
@page { size: A4; margin: 14mm; }
@media print { :root { color-scheme: light; font-size: 10pt; } body { background: none; }
  main { padding: 0; gap: .6rem; max-width: none; } section { break-inside: avoid; padding: .6rem .8rem; } }
"""
