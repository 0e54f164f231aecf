//! Plots for the documentation: text, without libraries, readable on light and dark pages.

use std::fmt::Write;
use std::time::Duration;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 24.0;
const ROW: f64 = 34.0;
const TOP: f64 = 48.0;

/// Draws a row of points for each name, on a logarithmic time scale. A bar marks the mean.
pub fn strips(title: &str, rows: &[(String, Vec<Duration>)]) -> String {
    let millis = |time: &Duration| (time.as_secs_f64() * 1e3).max(0.1);
    let all: Vec<f64> = rows
        .iter()
        .flat_map(|row| row.1.iter().map(millis))
        .collect();
    let low = all
        .iter()
        .copied()
        .fold(f64::INFINITY, f64::min)
        .min(10.0)
        .log10()
        .floor();
    let high = all
        .iter()
        .copied()
        .fold(0.0, f64::max)
        .max(100.0)
        .log10()
        .ceil();
    let x = |ms: f64| LEFT + (ms.log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let bottom = TOP + ROW * rows.len() as f64;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">
<style>
  text {{ font: 13px system-ui, sans-serif; fill: #24292f }}
  .title {{ font-weight: 600 }}
  .grid {{ stroke: #d0d7de }}
  .point {{ fill: #0969da; fill-opacity: 0.55 }}
  .mean {{ stroke: #cf222e; stroke-width: 2 }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6edf3 }}
    .grid {{ stroke: #484f58 }}
    .point {{ fill: #58a6ff; fill-opacity: 0.7 }}
    .mean {{ stroke: #ff7b72 }}
  }}
</style>
<text class="title" x="12" y="22">{title}</text>
"#,
        height = bottom + 34.0
    );
    let mut decade = low;
    while decade <= high {
        let at = x(10f64.powf(decade));
        _ = writeln!(
            out,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{bottom}"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            bottom + 20.0,
            label(10f64.powf(decade))
        );
        decade += 1.0;
    }
    for (index, (name, times)) in rows.iter().enumerate() {
        let y = TOP + ROW * (index as f64 + 0.5);
        _ = writeln!(out, r#"<text x="12" y="{:.1}">{name}</text>"#, y + 4.0);
        for time in times {
            _ = writeln!(
                out,
                r#"<circle class="point" cx="{:.1}" cy="{y:.1}" r="5"/>"#,
                x(millis(time))
            );
        }
        if !times.is_empty() {
            let mean = times.iter().map(millis).sum::<f64>() / times.len() as f64;
            let at = x(mean);
            _ = writeln!(
                out,
                r#"<line class="mean" x1="{at:.1}" x2="{at:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                y - 11.0,
                y + 11.0
            );
        }
    }
    out + "</svg>\n"
}

fn label(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{ms} ms")
    } else {
        format!("{} s", ms / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_keep_their_order_inside_the_picture() {
        let rows = [
            (
                "a".to_owned(),
                vec![Duration::from_millis(20), Duration::from_secs(2)],
            ),
            ("b".to_owned(), Vec::new()),
        ];
        let text = strips("t", &rows);
        let at: Vec<f64> = text
            .split("cx=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(
            at.len() == 2 && LEFT <= at[0] && at[0] < at[1] && at[1] <= WIDTH - RIGHT,
            "{at:?}"
        );
        assert!(
            text.contains(">10 ms<") && text.contains(">10 s<"),
            "{text}"
        );
    }
}
