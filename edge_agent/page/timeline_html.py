"""Writes the timeline's page: everything that a person reads there is escaped, and no code or style is within it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

from edge_agent.storage.timeline import MINUTE_S, Minute, Stretch, bounds, stretches
from gaitway.plain_text import label_text

MAX_ASKED, MAX_LISTED = 10, 200
HOUR_S = 3600.0
COLOURS = 8
SET_YEAR = 2001
"""Days before it are of a clock that nobody had set."""
MOVEMENT_FULL = 4.0
"""m/s²: a bar of full height; walking has two to four."""


class DayView(NamedTuple):
    """What the page is made of: a day and its minutes, the days that are known, and what the device asks about."""

    day: date
    known: list[date]
    minutes: dict[int, Minute]
    uncertain: list[Stretch]
    labels: tuple[str, ...]
    why_no_labels: str


class Done(NamedTuple):
    """What came of the last label: how many windows now have it."""

    day: date | None
    windows: int
    activity: str


def day_page(device: str, found: DayView | None, done: Done | None = None, problem: str = "") -> str:
    """Write the page of a day; without anything known it says so."""
    notice = _said(done, problem)
    if found is None:
        empty = '<p class="card">There are no windows yet. They come once a plan is known and a sensor delivers.</p>'
        return _document(device, notice + empty)
    return _document(device, notice + _day_choice(found) + _asked(found) + _chart(found) + _list(found))


def login_page(problem: str = "") -> str:
    """Write the form that asks for the device's password."""
    return _document(
        "Device",
        _note(problem, bad=True)
        + '<form class="card narrow" method="post" action="/timeline/login"><h2>Password of this device</h2>'
        '<label>Password <input type="password" name="password" autocomplete="current-password" required '
        'maxlength="256"></label> <button>Log in</button></form>',
    )


def _document(device: str, body: str) -> str:
    name = escape(device)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Timeline – {name} – Gaitway</title>\n"
        '<link rel="icon" href="/icon.svg">\n<link rel="stylesheet" href="/page.css">\n'
        '<link rel="stylesheet" href="/timeline.css">\n<script type="module" src="/timeline.js"></script>\n'
        '</head>\n<body>\n<header><img src="/icon.svg" alt="" width="28" height="28">'
        f'<h1>{name}: timeline</h1><a class="back" href="/">The device</a></header>\n'
        f'<main class="timeline">\n{body}\n</main>\n</body>\n</html>\n'
    )


def _note(words: str, *, bad: bool = False) -> str:
    if not words:
        return ""
    return f'<p class="said {"bad" if bad else "good"}" role="{"alert" if bad else "status"}">{escape(words)}</p>'


def _said(done: Done | None, problem: str) -> str:
    if problem:
        return _note(problem, bad=True)
    if done is None:
        return ""
    windows = "1 window is" if done.windows == 1 else f"{done.windows:,} windows are"
    later = "" if done.windows else "; none lies there that was not so already"
    day = _hidden("day", done.day.isoformat()) if done.day else ""
    back = f'<form method="post" action="/timeline/undo">{day}<button class="plain">Take it back</button></form>'
    words = f"{windows} now {label_text(done.activity)}{later}."
    return f'<div class="done">{_note(words)}{back if done.windows else ""}</div>'


def _day_choice(found: DayView) -> str:
    options = "".join(
        f'<option value="{day.isoformat()}"{" selected" if day == found.day else ""}>{_day_name(day)}</option>'
        for day in found.known or [found.day]
    )
    earlier = next((day for day in found.known if day < found.day), None)
    later = next((day for day in reversed(found.known) if day > found.day), None)
    return (
        '<nav class="days" aria-label="Days">'
        + _day_link(earlier, "Earlier")
        + f'<form action="/timeline"><label for="day">Day</label> <select id="day" name="day">{options}</select> '
        '<button class="plain">Show</button></form>' + _day_link(later, "Later") + "</nav>"
    )


def _day_link(day: date | None, words: str) -> str:
    return f'<a class="button" href="{escape(address_of(day))}">{words}</a>' if day else ""


def _day_name(day: date) -> str:
    return "clock not set" if day.year < SET_YEAR else f"{day:%A}, {day.day} {day:%B %Y}"


def _asked(found: DayView) -> str:
    """Write what the device asks about: uncertain stretches first, of the last two weeks."""
    if not found.labels:
        return ""
    shown = found.uncertain[:MAX_ASKED]
    if not shown:
        words = "Nothing to ask: what was recognized is certain, or labelled."
        return f'<section class="card"><h2>Help me with these</h2><p class="quiet">{words}</p></section>'
    more = len(found.uncertain) - len(shown)
    rest = f'<p class="quiet">And {more:,} more, which come when these are labelled.</p>' if more else ""
    items = "".join(_item(run, found, with_day=True) for run in shown)
    return (
        '<section class="card" aria-labelledby="h-asked"><h2 id="h-asked">Help me with these</h2>'
        '<p class="quiet">Where the model is least certain, a label helps most. It counts in the next round, or the '
        f'next sums.</p><ul class="stretches">{items}</ul>{rest}</section>'
    )


def _chart(found: DayView) -> str:
    if not found.minutes:
        return '<section class="card"><h2>The day</h2><p class="quiet">Nothing is known of this day.</p></section>'
    begin_s, hours, step = _hours(found)
    width = int(hours * 60)
    runs = stretches(found.minutes)
    lanes = _movement(found, begin_s) + "".join(_rects(run, found, begin_s) for run in runs)
    marks = "".join(f"<li>{_clock(begin_s + i * step * HOUR_S)}</li>" for i in range(hours // step))
    legend = "".join(
        f'<li><i class="c{_colour(label, found.labels)}"></i>{escape(label_text(label))}</li>' for label in _used(runs)
    )
    data = f'data-first="{_clock(begin_s)}" data-minutes="{width}"'
    return (
        '<section class="card" aria-labelledby="h-day"><h2 id="h-day">The day</h2>'
        '<div class="chart"><ul class="lanes" aria-hidden="true">'
        "<li>Movement</li><li>Recognized</li><li>Label</li></ul>"
        f'<svg id="chart" viewBox="0 0 {width} 120" preserveAspectRatio="none" role="img" {data} '
        f'aria-label="{escape(_in_words(runs))}">{lanes}</svg><ol class="hours" aria-hidden="true">{marks}</ol></div>'
        f'<ul class="legend">{legend}</ul>{_span_form(found)}</section>'
    )


def _hours(found: DayView) -> tuple[float, int, int]:
    """Return where the chart begins, over how many hours it goes, and how many of them lie between two marks."""
    first_s, last_s = min(found.minutes) * MINUTE_S, (max(found.minutes) + 1) * MINUTE_S
    low = int((first_s - bounds(found.day)[0]) // HOUR_S)
    high = int(-((bounds(found.day)[0] - last_s) // HOUR_S))
    step = next(hours for hours in (1, 2, 3, 4, 6) if (high - low + hours) / hours <= 8)
    low -= low % step
    high += -(high - low) % step
    return bounds(found.day)[0] + low * HOUR_S, high - low, step


def _movement(found: DayView, begin_s: float) -> str:
    bars = []
    for number, minute in found.minutes.items():
        if minute.seen:
            height = 56 * min(1.0, (minute.movement / minute.seen / MOVEMENT_FULL) ** 0.5)
            x = (number * MINUTE_S - begin_s) / MINUTE_S
            bars.append(f'<rect class="movement" x="{x:.0f}" y="{58 - height:.1f}" width="1" height="{height:.1f}"/>')
    return "".join(bars)


def _rects(stretch: Stretch, found: DayView, begin_s: float) -> str:
    x, width = (stretch.from_s - begin_s) / MINUTE_S, (stretch.to_s - stretch.from_s) / MINUTE_S
    place = f'x="{x:.0f}" width="{width:.0f}" data-from="{_clock(stretch.from_s)}" data-to="{_end(stretch, found.day)}"'
    made = ""
    if stretch.recognized:
        opacity = max(0.25, stretch.certainty or 0.0)
        kind = f"f{_colour(stretch.recognized, found.labels)}"
        made += f'<rect class="{kind}" {place} y="64" height="26" fill-opacity="{opacity:.2f}"/>'
    if stretch.label:
        made += f'<rect class="f{_colour(stretch.label, found.labels)}" {place} y="94" height="26"/>'
    elif stretch.kept:
        made += f'<rect class="open" {place} y="94" height="26"/>'
    return made


def _span_form(found: DayView) -> str:
    if not found.labels:
        return f'<p class="quiet">{escape(found.why_no_labels)}</p>'
    buttons = "".join(
        f'<button class="label" name="activity" value="{escape(label)}">{escape(label_text(label))}</button>'
        for label in found.labels
    )
    return (  # without times: a button that is pressed by mistake labels nothing
        f'<form id="span" method="post" action="/timeline/label">{_hidden("day", found.day.isoformat())}'
        '<p id="how" class="quiet">Say from when to when, on this device\'s clock, and what you did.</p>'
        '<p class="row"><label>From <input type="time" name="from" required></label> '
        '<label>to <input type="time" name="to" required></label></p>'
        f'<div class="buttons" role="group" aria-label="Activity">{buttons}</div></form>'
    )


def _list(found: DayView) -> str:
    runs = stretches(found.minutes)
    if not runs:
        return ""
    items = "".join(_item(run, found, with_day=False) for run in runs[:MAX_LISTED])
    more = len(runs) - MAX_LISTED
    rest = f'<p class="quiet">And {more:,} more of this day: label them by their time, above.</p>' if more > 0 else ""
    return (
        '<section class="card" aria-labelledby="h-list"><h2 id="h-list">Stretches of the day</h2>'
        f'<ul class="stretches">{items}</ul>{rest}</section>'
    )


def _item(stretch: Stretch, found: DayView, *, with_day: bool) -> str:
    day = datetime.fromtimestamp(stretch.from_s).date()
    when = f"{_clock(stretch.from_s)} to {_end(stretch, day)}"
    where = f"{_day_name(day)}, {when}" if with_day and day != found.day else when
    moved = "" if stretch.movement is None else _movement_words(stretch.movement)
    parts = [
        f"<b>{escape(where)}</b>",
        f"<span>{_recognized(stretch, found.labels)}</span>",
        f'<span class="quiet">{moved}</span>',
        f"<span>{_label_words(stretch, found.labels)}</span>",
    ]
    if found.labels and stretch.kept:
        parts.append(_item_form(stretch, found.labels, day, when))
    return f"<li>{''.join(parts)}</li>"


def _item_form(stretch: Stretch, labels: Sequence[str], day: date, when: str) -> str:
    preset = stretch.label or stretch.recognized
    options = "".join(
        f'<option value="{escape(label)}"{" selected" if label == preset else ""}>{escape(label_text(label))}</option>'
        for label in labels
    )
    verb = "Correct" if stretch.label else "Label"
    hidden = _hidden("day", day.isoformat()) + _hidden("from", _clock(stretch.from_s))
    return (
        f'<form method="post" action="/timeline/label">{hidden}{_hidden("to", _end(stretch, day))}'
        f'<select name="activity" aria-label="Activity from {when}">{options}</select> '
        f'<button class="plain" aria-label="{verb} {when}">{verb}</button></form>'
    )


def _recognized(stretch: Stretch, labels: Sequence[str]) -> str:
    if not stretch.recognized or stretch.certainty is None:
        return '<span class="quiet">not recognized</span>'
    mark = f'<i class="c{_colour(stretch.recognized, labels)}"></i>'
    return f"{mark}{escape(label_text(stretch.recognized))}, {100 * stretch.certainty:.0f} %"


def _label_words(stretch: Stretch, labels: Sequence[str]) -> str:
    if not stretch.kept:
        return '<span class="quiet">no window is kept</span>'
    if not stretch.label:
        return '<span class="quiet">no label</span>'
    differs = " <em>(differs)</em>" if stretch.recognized and stretch.recognized != stretch.label else ""
    return f'<i class="c{_colour(stretch.label, labels)}"></i>labelled {escape(label_text(stretch.label))}{differs}'


def _movement_words(movement: float) -> str:
    strength = "still" if movement < 0.2 else "little movement" if movement < 1 else "movement"
    return f"{strength} ({movement:.1f} m/s²)"


def _in_words(runs: Sequence[Stretch]) -> str:
    """Say what the chart shows to who does not see it; the list below it says all."""
    stretches = [f"{_clock(run.from_s)} {label_text(run.recognized or run.label or 'unknown')}" for run in runs]
    rest = f", and {len(stretches) - 8} more" if len(stretches) > 8 else ""
    return f"Movement, what was recognized and labels: {', '.join(stretches[:8])}{rest}; all are listed below"


def _used(runs: Iterable[Stretch]) -> list[str]:
    return sorted({label for run in runs for label in (run.recognized, run.label) if label})


def _colour(label: str, labels: Sequence[str]) -> int:
    return (labels.index(label) % COLOURS if label in labels else COLOURS - 1) + 1


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%H:%M")


def _end(stretch: Stretch, day: date) -> str:
    return "24:00" if stretch.to_s >= bounds(day)[1] else _clock(stretch.to_s)


def _hidden(name: str, value: str) -> str:
    return f'<input type="hidden" name="{name}" value="{escape(value)}">'


def address_of(day: date, **more: str) -> str:
    """Return the page of a day, with what else it is to say."""
    return f"/timeline?{urlencode({'day': day.isoformat(), **more})}"
