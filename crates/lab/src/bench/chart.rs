//! The profile as a chart: a stacked bar for each test, and the figures below.

use std::fmt::Write;

use super::breakdown::{Breakdown, ProfileRow, STARTING, WAITING, percent};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 20.0;
const BAR_WIDTH: f64 = WIDTH - 2.0 * MARGIN;
const BAR_HEIGHT: f64 = 34.0;
const LINE: f64 = 20.0;
/// A segment that is narrower has no name in it.
const NAMED_WIDTH: f64 = 70.0;
/// Width of a character, about.
const CHARACTER: f64 = 7.0;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito, 2008), then lighter ones.
const COLOURS: [&str; 12] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a700", "#7aa6c2", "#f2c879",
    "#80cfb9", "#e0b4cd", "#bbbbbb",
];

/// An SVG that needs nothing else.
pub fn svg(title: &str, breakdowns: &[Breakdown]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for part in breakdowns.iter().flat_map(|breakdown| &breakdown.parts) {
        if ![WAITING, STARTING].contains(&part.name.as_str()) && !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    let mut body = String::new();
    let mut y = MARGIN + LINE;
    text(&mut body, MARGIN, y, "bold", title);
    y += LINE;
    for breakdown in breakdowns {
        y = test(&mut body, y, breakdown, &names);
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         {body}</svg>\n"
    )
}

/// An HTML page with the chart in it.
pub fn html(title: &str, breakdowns: &[Breakdown]) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"/><title>{}</title></head>\n<body>\n{}</body>\n\
         </html>\n",
        escaped(title),
        svg(title, breakdowns)
    )
}

/// Draws a test from `y` down; returns where it ends.
fn test(body: &mut String, y: f64, breakdown: &Breakdown, names: &[&str]) -> f64 {
    let Breakdown { test, steps, total_us, parts } = breakdown;
    let mut y = y + LINE;
    text(body, MARGIN, y, "bold", &format!("{test}: {steps} steps, {:.2} ms", total_us / 1e3));
    y += LINE / 2.0;
    let mut x = MARGIN;
    for part in parts {
        let width = BAR_WIDTH * part.share;
        let (colour, figures) = (colour(&part.name, names), figures(part));
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\" \
             stroke=\"#ffffff\"><title>{}: {}</title></rect>",
            escaped(&part.name),
            escaped(&figures)
        );
        if width >= NAMED_WIDTH {
            let short: String = part.name.chars().take((width / CHARACTER) as usize).collect();
            text(body, x + 4.0, y + BAR_HEIGHT / 2.0 + 5.0, "normal", &short);
        }
        x += width;
    }
    y += BAR_HEIGHT + 4.0;
    for part in parts {
        y += LINE;
        let colour = colour(&part.name, names);
        let _ = writeln!(
            body,
            "<rect x=\"{MARGIN}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
            y - 11.0
        );
        text(body, MARGIN + 20.0, y, "normal", &part.name);
        text(body, MARGIN + 260.0, y, "normal", &figures(part));
    }
    y + LINE
}

fn colour(name: &str, names: &[&str]) -> &'static str {
    match name {
        WAITING => "#dddddd",
        STARTING => "#eeeeee",
        _ => COLOURS[names.iter().position(|&known| known == name).unwrap_or(0) % COLOURS.len()],
    }
}

fn figures(part: &ProfileRow) -> String {
    let mut text = format!("{:.2} ms, {}", part.us / 1e3, percent(part.share));
    if let Some(count) = part.count {
        let _ = write!(text, ", {count} ops");
    }
    if let Some(rate) = part.rate {
        let _ = write!(
            text,
            "; {:.2} GB/s ({} of peak), {:.1} GOPS ({} of peak)",
            rate.gb_per_s,
            percent(rate.of_read_peak),
            rate.gops,
            percent(rate.of_gops_peak)
        );
    }
    text
}

fn text(body: &mut String, x: f64, y: f64, weight: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-weight=\"{weight}\">{text}</text>");
}

/// Text for XML and HTML. Characters that XML cannot hold are left out.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            _ if character.is_control() => {}
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::breakdown::MatmulRate;
    use super::*;

    fn breakdown(test: &str) -> Breakdown {
        let rate = MatmulRate { gb_per_s: 12.5, of_read_peak: 0.5, gops: 100.0, of_gops_peak: 0.25 };
        let part = |name: &str, share: f64, rate| ProfileRow {
            name: name.into(),
            count: Some(3),
            us: share * 1000.0,
            share,
            rate,
        };
        let parts =
            vec![part("Linear <Q4_1>", 0.7, Some(rate)), part("Rope", 0.2, None), part(WAITING, 0.1, None)];
        Breakdown { test: test.into(), steps: 2, total_us: 1000.0, parts }
    }

    /// Names of the elements of well-formed XML, in order: every tag closed by its own, every attribute quoted, every `&`
    /// an entity.
    fn elements(xml: &str) -> Vec<String> {
        let (mut open, mut seen, mut rest) = (Vec::new(), Vec::new(), xml);
        while let Some(start) = rest.find('<') {
            let (text, tag) = rest.split_at(start);
            assert!(!text.contains('>'), "{text}");
            for entity in text.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                    "{text}"
                );
            }
            let end = tag.find('>').expect("a tag ends");
            let inside = &tag[1..end];
            rest = &tag[end + 1..];
            if let Some(name) = inside.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
            } else if !inside.starts_with('!') {
                let name = inside.split([' ', '/']).next().unwrap().to_owned();
                assert_eq!(inside.matches('"').count(), 2 * inside.matches("=\"").count(), "{inside}");
                assert!(!inside.contains(['<', '&']), "{inside}");
                seen.push(name.clone());
                if !inside.ends_with('/') {
                    open.push(name);
                }
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
        seen
    }

    #[test]
    fn the_picture_is_well_formed_and_escaped() {
        let title = "a <b> & \"c\" \u{1}";
        let breakdowns = [breakdown("pp512"), breakdown("tg8@d<2>")];
        let chart = svg(title, &breakdowns);
        let names = elements(&chart);
        assert_eq!(names[0], "svg");
        // The background, and for each part of each test a segment and its colour in the list.
        assert_eq!(names.iter().filter(|name| *name == "rect").count(), 1 + 2 * 2 * 3, "{chart}");
        assert!(chart.contains("a &lt;b&gt; &amp; &quot;c&quot; </text>"), "{chart}");
        assert!(chart.contains("12.50 GB/s (50.0% of peak), 100.0 GOPS (25.0% of peak)"), "{chart}");
        let page = html(title, &breakdowns);
        let names = elements(&page);
        assert!(names[0] == "html" && names.contains(&"svg".to_owned()), "{page}");
    }

    #[test]
    fn segments_fill_the_bar_and_keep_their_colour_from_test_to_test() {
        let chart = svg("t", &[breakdown("a"), breakdown("b")]);
        for (x, width) in [("20.00", "644.00"), ("664.00", "184.00"), ("848.00", "92.00")] {
            let segment = format!("<rect x=\"{x}\"");
            let found: Vec<&str> = chart.lines().filter(|line| line.starts_with(&segment)).collect();
            assert_eq!(found.len(), 2, "{chart}");
            assert!(found.iter().all(|line| line.contains(&format!("width=\"{width}\""))), "{chart}");
            let fill = |line: &str| line.split("fill=").nth(1).unwrap()[..9].to_owned();
            assert_eq!(fill(found[0]), fill(found[1]));
        }
    }
}
