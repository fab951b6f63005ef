"""The light and dark theme of the page. The colours of fates are the same in all views."""

from __future__ import annotations

from typing import Final

FATES: Final = {
    "delivered": "#2e9e6b",
    "filtered": "#8a94a6",
    "expired": "#c98a1b",
    "dropped": "#e0603c",
    "dead": "#c62f45",
    "in_flight": "#3b7dd8",
}
SERIES: Final = ("#3b7dd8", "#2e9e6b", "#e0603c", "#8b6fd6", "#c98a1b")
AXIS: Final = "#8a94a6"
GRID: Final = "rgba(138,148,166,0.18)"

FAVICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#3b5bdb"/>'
    '<path d="M6 10h20M16 10v14" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/>'
    '<circle cx="6" cy="10" r="3" fill="#fff"/><circle cx="26" cy="10" r="3" fill="#fff"/>'
    '<circle cx="16" cy="24" r="3" fill="#fff"/></svg>'
)

CSS: Final = """
:root{--bg:#f6f7f9;--card:#fff;--line:#e3e6ec;--text:#1d2433;--soft:#5d6779;--faint:#8a94a6;--accent:#3b5bdb;
--accent-soft:#eef1fd;--bad:#c62f45;--bad-soft:#fdecef;--good:#1f8a5b;--good-soft:#e6f6ee;--warn:#a86c06;
--warn-soft:#fdf3df;--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
body.body--dark{--bg:#11151d;--card:#181e29;--line:#2a3242;--text:#e5e9f1;--soft:#a3adbf;--faint:#76819a;
--accent:#8da2fb;--accent-soft:#222b4a;--bad:#ff7d8d;--bad-soft:#3a1c26;--good:#5ecb98;--good-soft:#15352a;
--warn:#e9b454;--warn-soft:#382c14}
body,body.body--dark{background:var(--bg);color:var(--text);
font-family:Inter,"Segoe UI",Roboto,"Helvetica Neue",system-ui,sans-serif;font-size:14px;line-height:1.45}
.nicegui-content{padding:0!important;gap:0!important;display:block!important}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:4px}
.tl-skip{position:absolute;left:-999px}.tl-skip:focus{left:8px;top:8px;z-index:9999;background:var(--card);padding:8px}
.tl-shell{display:grid;grid-template-columns:216px minmax(0,1fr);min-height:100vh}
.tl-side{background:var(--card);border-right:1px solid var(--line);padding:14px 10px;position:sticky;top:0;
height:100vh;overflow:auto;box-sizing:border-box;display:flex;flex-direction:column;gap:2px}
.tl-brand{display:flex;align-items:center;gap:9px;font-weight:650;font-size:16px;padding:4px 8px 14px;color:var(--text)}
.tl-brand:hover{text-decoration:none}.tl-brand svg{width:24px;height:24px;flex:none}
.tl-nav{display:flex;align-items:center;gap:10px;padding:7px 10px;border-radius:7px;color:var(--soft);font-weight:500}
.tl-nav:hover{background:var(--bg);color:var(--text);text-decoration:none}
.tl-nav .q-icon{font-size:18px}.tl-nav[aria-current]{background:var(--accent-soft);color:var(--accent)}
.tl-count{margin-left:auto;font-size:11.5px;font-variant-numeric:tabular-nums;color:var(--faint)}
.tl-count.bad{background:var(--bad-soft);color:var(--bad);border-radius:9px;padding:1px 7px;font-weight:600}
.tl-main{padding:18px 26px 40px;min-width:0;max-width:1560px;width:100%;box-sizing:border-box}
.tl-top{display:flex;align-items:center;gap:12px;margin-bottom:16px;flex-wrap:wrap}
.tl-top h1{font-size:21px;font-weight:650;margin:0;line-height:1.3;letter-spacing:-.01em}
.tl-sub{color:var(--soft);margin:0}.tl-grow{flex:1}
.tl-pill{display:inline-flex;align-items:center;gap:7px;border:1px solid var(--line);border-radius:99px;
padding:3px 11px;background:var(--card);color:var(--soft);font-size:12.5px;max-width:420px;overflow:hidden;
white-space:nowrap;text-overflow:ellipsis}
.tl-dot{width:8px;height:8px;border-radius:50%;background:var(--good);flex:none}.tl-dot.bad{background:var(--bad)}
.tl-icon{border:1px solid var(--line);background:var(--card);color:var(--soft);border-radius:8px;width:32px;height:32px;
display:inline-grid;place-items:center;cursor:pointer;font-size:17px}.tl-icon:hover{color:var(--text)}
.tl-find{border:1px solid var(--line);background:var(--card);color:var(--text);border-radius:8px;height:32px;
padding:0 11px;width:250px;font:inherit;font-size:13px}
.tl-find::placeholder{color:var(--faint)}
.tl-card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin-bottom:16px;
display:block;min-width:0}
.tl-card>h2,.tl-h2{font-size:13.5px;font-weight:620;margin:0 0 10px;line-height:1.4;color:var(--text)}
.tl-grid{display:grid;gap:16px;margin-bottom:16px}.tl-grid .tl-card{margin-bottom:0}
.tl-stats{grid-template-columns:repeat(auto-fit,minmax(124px,1fr))}
.tl-halves{grid-template-columns:repeat(auto-fit,minmax(420px,1fr))}
.tl-thirds{grid-template-columns:repeat(auto-fit,minmax(280px,1fr))}
.tl-card.tl-stat{padding:13px 14px}
.tl-stat .v{font-size:25px;font-weight:640;font-variant-numeric:tabular-nums;letter-spacing:-.02em;line-height:1.25}
.tl-stat .l{color:var(--soft);font-size:12.5px}.tl-stat .n{color:var(--faint);font-size:11.5px}
.tl-stat.bad .v{color:var(--bad)}
.tl-banner{border-radius:9px;padding:10px 14px;margin-bottom:12px;background:var(--bad-soft);color:var(--bad);
border:1px solid color-mix(in srgb,var(--bad) 30%,transparent)}
.tl-problem{display:grid;grid-template-columns:auto 1fr;gap:2px 10px;padding:9px 0;border-top:1px solid var(--line)}
.tl-problem:first-of-type{border-top:0}.tl-problem .q-icon{color:var(--bad);font-size:18px;grid-row:span 2}
.tl-problem .t{font-weight:520}.tl-problem .s{color:var(--soft)}
.tl-note{color:var(--soft);padding:4px 0}
.tl-empty{color:var(--soft);text-align:center;padding:34px 10px}
.tl-empty .q-icon{font-size:34px;color:var(--faint);display:block;margin:0 auto 6px}
.tl-mono,.tl-code{font-family:var(--mono);font-size:12.5px}
.tl-code{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--bg);border:1px solid var(--line);
border-radius:8px;padding:11px 13px;max-height:440px;overflow:auto;margin:0;line-height:1.5}
.tl-tag{display:inline-block;border-radius:6px;padding:1px 8px;font-size:12px;font-weight:560;background:var(--bg);
color:var(--soft);border:1px solid var(--line);white-space:nowrap}
.tl-tag.good{background:var(--good-soft);color:var(--good);border-color:transparent}
.tl-tag.bad{background:var(--bad-soft);color:var(--bad);border-color:transparent}
.tl-tag.warn{background:var(--warn-soft);color:var(--warn);border-color:transparent}
.tl-tag.info{background:var(--accent-soft);color:var(--accent);border-color:transparent}
.tl-bar{display:flex;height:9px;border-radius:5px;overflow:hidden;background:var(--line);min-width:90px}
.tl-bar i{display:block;height:100%;min-width:0}
.tl-legend{display:flex;gap:14px;flex-wrap:wrap;color:var(--soft);font-size:12.5px}
.tl-legend span{display:inline-flex;align-items:center;gap:6px}
.tl-legend i{width:9px;height:9px;border-radius:3px;display:inline-block}
.tl-tools{display:flex;gap:10px;align-items:center;flex-wrap:wrap;margin-bottom:12px}
.tl-tools .q-field{min-width:150px}
.q-field--outlined .q-field__control{border-radius:8px!important;background:var(--card)}
.q-field--dense .q-field__control,.q-field--dense .q-field__marginal{height:36px!important;min-height:36px!important}
.q-field--dense.q-textarea .q-field__control{height:auto!important}
.q-field--outlined .q-field__control:before{border-color:var(--line)!important}
.q-field__native,.q-field__label{color:var(--text)!important;font-size:13.5px}
.q-field__label{color:var(--faint)!important}.q-field__native::placeholder{color:var(--faint)}
.q-btn .q-icon{font-size:17px!important}.q-btn--dense .q-icon{margin-right:5px!important}
.q-btn{font-size:13px!important;text-transform:none!important;border-radius:8px!important;font-weight:560!important}
.q-table__container{background:var(--card)!important;color:var(--text)!important;border:1px solid var(--line);
border-radius:10px!important;box-shadow:none!important}
.q-table th{font-size:12px!important;font-weight:600!important;color:var(--soft)!important;
border-color:var(--line)!important;background:var(--card);white-space:nowrap}
.q-table th[tabindex]{cursor:pointer}
.q-table td{white-space:nowrap;font-size:13px!important;border-color:var(--line)!important;
font-variant-numeric:tabular-nums;max-width:420px;overflow:hidden;text-overflow:ellipsis}
.q-table tbody tr:hover td:before{background:color-mix(in srgb,var(--accent) 6%,transparent)!important}
.q-table__bottom{color:var(--soft)!important;border-color:var(--line)!important;min-height:42px!important}
.q-table__bottom-nodata-icon{display:none}.q-table td.tl-wide{max-width:0;width:60%;min-width:180px}
.q-table__bottom--nodata{padding:26px!important;justify-content:center}
.tl-tl{list-style:none;margin:0;padding:0}
.tl-tl li{display:grid;grid-template-columns:128px 22px 1fr;gap:0 8px;padding-bottom:14px;position:relative}
.tl-tl li:not(:last-child):before{content:"";position:absolute;left:145.5px;top:14px;bottom:-4px;width:2px;
background:var(--line)}
.tl-tl .w{color:var(--faint);font-variant-numeric:tabular-nums;font-size:12.5px;text-align:right;padding-top:1px}
.tl-tl .b{width:12px;height:12px;border-radius:50%;margin:4px auto 0;background:var(--faint);position:relative;
box-shadow:0 0 0 3px var(--card)}
.tl-tl .k{font-weight:580}.tl-tl .x{color:var(--soft);overflow-wrap:anywhere;white-space:pre-wrap}
.tl-kv{margin:0;display:grid;grid-template-columns:minmax(110px,auto) 1fr;gap:5px 16px;font-size:13px}
.tl-kv dt{color:var(--soft);margin:0}.tl-kv dd{margin:0;overflow-wrap:anywhere;min-width:0}
.tl-tree{display:grid;gap:3px}.tl-tree .r{display:grid;grid-template-columns:1fr auto auto;gap:12px;padding:5px 9px;
border-radius:7px;align-items:center;min-width:0}
.tl-tree .r.me{background:var(--accent-soft)}.tl-tree .r>*{min-width:0;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
.tl-svg{overflow-x:auto}.tl-svg svg{width:100%;min-width:760px;height:auto;display:block}
.tl-svg a:hover .n,.tl-svg a:focus-visible .n{stroke:var(--accent)}
.tl-svg text{fill:var(--text);font-size:12.5px;
font-family:inherit}.tl-svg .h{fill:var(--faint);font-size:11.5px;font-weight:600}.tl-svg .r{fill:var(--soft);
font-size:11.5px}.tl-svg .n{fill:var(--card);stroke:var(--line)}.tl-svg path{fill:none;stroke:var(--accent);
stroke-linecap:round}
.tl-dialog{background:var(--card)!important;color:var(--text);min-width:min(720px,92vw);border-radius:12px!important;
padding:20px!important;gap:9px!important}
body.body--dark .q-btn.text-primary{color:var(--accent)!important}
body.body--dark .q-btn.text-negative{color:var(--bad)!important}
@media (max-width:860px){.tl-shell{grid-template-columns:minmax(0,1fr);grid-template-rows:auto 1fr}
.tl-side{position:static;height:auto;flex-direction:row;flex-wrap:wrap;align-items:center;align-content:start;
padding:8px;border-right:0;border-bottom:1px solid var(--line)}
.tl-brand{padding:4px 8px}.tl-nav{padding:5px 8px;gap:7px}.tl-main{padding:14px}
.tl-halves{grid-template-columns:1fr}}
"""

SCRIPT: Final = """
function tlTheme(){const dark=!document.body.classList.contains('body--dark');Quasar.Dark.set(dark);
document.cookie='trunkline_theme='+(dark?'dark':'light')+';path=/;max-age=31536000;samesite=lax'}
document.addEventListener('keydown',e=>{if(e.key==='/'&&!/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName))
{const f=document.querySelector('.tl-find');if(f){e.preventDefault();f.focus()}}});
document.addEventListener('visibilitychange',()=>emitEvent('visibility',document.visibilityState==='visible'));
"""
