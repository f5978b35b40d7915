"""The style sheet of a run in a notebook: JupyterLab's own colours, so it follows light and dark themes."""

from __future__ import annotations

STYLE = """<style>
.carme-run{font-family:var(--jp-ui-font-family,sans-serif);font-size:var(--jp-ui-font-size1,13px);line-height:1.5;
color:var(--jp-ui-font-color1,inherit);max-width:60rem;padding:.25rem 0}
.carme-run p{margin:0 0 .25rem}
.carme-run .carme-state{font-weight:600}
.carme-run .carme-dim{color:var(--jp-ui-font-color2,inherit)}
.carme-run .carme-bad{border-left:.25rem solid var(--jp-error-color1,#b3261e);padding:.25rem .75rem;margin:.25rem 0;
overflow-wrap:anywhere}
.carme-run progress{width:100%;max-width:30rem;height:.75rem;display:block;margin:.25rem 0}
.carme-run .carme-wide{overflow-x:auto;max-width:100%}
.carme-run table{border-collapse:collapse;margin:.25rem 0;font-variant-numeric:tabular-nums;font-size:inherit}
.carme-run th,.carme-run td{text-align:right;padding:.1rem .75rem .1rem 0;white-space:nowrap;background:none}
.carme-run th:nth-child(-n+3),.carme-run td:nth-child(-n+3){text-align:left}
.carme-run .carme-runs th,.carme-run .carme-runs td{text-align:left;vertical-align:top}
.carme-run .carme-runs td:last-child{white-space:normal;min-width:9rem;overflow-wrap:anywhere}
.carme-run thead th{color:var(--jp-ui-font-color2,inherit);font-weight:normal;
border-bottom:1px solid var(--jp-border-color2,#999)}
.carme-run .carme-log pre{flex:none;margin:0;padding:.5rem;white-space:pre-wrap;overflow-wrap:anywhere;background:none;
font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);
color:var(--jp-content-font-color1,inherit)}
.carme-log{display:flex;flex-direction:column-reverse;max-height:24em;overflow:auto;margin:.25rem 0;
border:1px solid var(--jp-border-color2,#bbb);border-radius:3px}.carme-run .carme-log p{margin:0;padding:.25rem .5rem}
.carme-run summary{cursor:pointer;padding:.15rem .25rem}
.carme-run :focus-visible,.carme-run button:focus-visible:enabled{outline:2px solid var(--jp-brand-color1,#1976d2);
outline-offset:-2px}
.carme-run .carme-log[hidden]{display:none}
.carme-run .carme-buttons{display:flex;flex-wrap:wrap;gap:.5rem;margin:.25rem 0}
.carme-run button{font:inherit;color:inherit;background:var(--jp-layout-color2,#eee);min-height:28px;padding:0 .75rem;
border:1px solid var(--jp-border-color1,#999);border-radius:3px;cursor:pointer}
.carme-run button:hover:enabled{background:var(--jp-layout-color3,#ddd)}.carme-run button:disabled{opacity:.5}
@media (max-width:600px){.carme-run button{min-height:44px}.carme-run summary{padding:.8rem .25rem}
.carme-run th,.carme-run td{padding-right:.4rem}}
</style>"""
