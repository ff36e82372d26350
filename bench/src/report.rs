//! What was measured, as a table, as JSON and as a chart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::load::Measured;

/// One line.
#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub clients: usize,
    pub sessions: usize,
    pub measured: Measured,
    /// Processor time for each answer, of this process and of PostgreSQL.
    pub processor: Option<[Duration; 2]>,
    /// The share of updates that touched no index.
    pub hot: Option<f64>,
}

#[derive(Debug, Default)]
pub struct Report {
    pub about: Vec<String>,
    pub rows: Vec<Row>,
    /// Whatever is no throughput.
    pub notes: Vec<String>,
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl Report {
    pub fn add(&mut self, row: Row) {
        let Measured { rate, p50, p99, .. } = row.measured;
        println!(
            "{:<26} {:>5} clients {:>8} sessions {rate:>9.0}/s  p50 {p50:>9.2?}  p99 {p99:>9.2?}",
            row.what, row.clients, row.sessions
        );
        self.rows.push(row);
    }

    pub fn note(&mut self, note: String) {
        println!("{note}");
        self.notes.push(note);
    }

    /// The throughput of that row.
    pub fn rate(&self, what: &str, clients: usize) -> Option<f64> {
        self.rows
            .iter()
            .find(|row| row.what == what && row.clients == clients)
            .map(|row| row.measured.rate)
    }

    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("report.md"), self.markdown())?;
        fs::write(
            folder.join("report.json"),
            serde_json::to_string_pretty(&self.json())?,
        )?;
        fs::write(folder.join("report.svg"), self.svg())?;
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut text = "# Heartbeats\n\n".to_owned();
        for about in &self.about {
            let _ = writeln!(text, "- {about}");
        }
        text += "\n![throughput and latency](report.svg)\n\n\
                 | what | clients | sessions | a second | p50 µs | p99 µs | host µs | PostgreSQL µs | HOT |\n\
                 |---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
        for row in &self.rows {
            let processor = row.processor.map(|times| times.map(micros));
            let [host, postgres] = match processor {
                Some(times) => times.map(|time| format!("{time:.1}")),
                None => Default::default(),
            };
            let hot = row
                .hot
                .map_or(String::new(), |hot| format!("{:.1} %", hot * 100.0));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {host} | {postgres} | {hot} |",
                row.what,
                row.clients,
                row.sessions,
                row.measured.rate,
                micros(row.measured.p50),
                micros(row.measured.p99),
            );
        }
        text += "\n`host` and `PostgreSQL` are processor time for each answer, user and system; \
                 the host's has the load generator in it.\n\n";
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    fn json(&self) -> Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "what": row.what,
                    "clients": row.clients,
                    "sessions": row.sessions,
                    "perSecond": row.measured.rate,
                    "p50Micros": micros(row.measured.p50),
                    "p99Micros": micros(row.measured.p99),
                    "answers": row.measured.answers,
                    "hostMicros": row.processor.map(|[host, _]| micros(host)),
                    "postgresMicros": row.processor.map(|[_, postgres]| micros(postgres)),
                    "hotShare": row.hot,
                })
            })
            .collect();
        json!({ "about": self.about, "rows": rows, "notes": self.notes })
    }

    fn svg(&self) -> String {
        let by_clients = |row: &Row| row.clients as f64;
        let by_sessions = |row: &Row| row.sessions as f64;
        let usual = self.rows.first().map_or(0, |row| row.sessions);
        let (growth, main): (Vec<&Row>, Vec<&Row>) = self
            .rows
            .iter()
            .partition(|row| row.what.starts_with(GROWTH));
        let main: Vec<_> = main
            .into_iter()
            .filter(|row| row.sessions == usual)
            .collect();
        let rate = |row: &Row| row.measured.rate;
        let p50 = |row: &Row| micros(row.measured.p50);
        let p99 = |row: &Row| micros(row.measured.p99);
        let panels = [
            panel("a second, by clients", &main, by_clients, rate),
            panel("p50 µs, by clients", &main, by_clients, p50),
            panel("p99 µs, by clients", &main, by_clients, p99),
            panel("a second, by sessions", &growth, by_sessions, rate),
            panel("p50 µs, by sessions", &growth, by_sessions, p50),
            panel("p99 µs, by sessions", &growth, by_sessions, p99),
        ];
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' \
             font-family='sans-serif' font-size='11'>\n<rect width='100%' height='100%' fill='white'/>\n",
            3.0 * (WIDTH + 2.0 * MARGIN),
            2.0 * (HEIGHT + 3.0 * MARGIN),
        );
        for (at, panel) in panels.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<g transform='translate({} {})'>{panel}</g>",
                MARGIN + (at % 3) as f64 * (WIDTH + 2.0 * MARGIN),
                MARGIN + (at / 3) as f64 * (HEIGHT + 3.0 * MARGIN),
            );
        }
        svg + "</svg>\n"
    }
}

/// What the rows that show growth begin with.
pub const GROWTH: &str = "growth";

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 44.0;
const COLOURS: [&str; 8] = [
    "#0b6e4f", "#d1495b", "#30638e", "#edae49", "#7b2d8b", "#555555", "#00a6a6", "#a0522d",
];

/// One diagram; both axes are logarithmic.
fn panel(title: &str, rows: &[&Row], x: impl Fn(&Row) -> f64, y: impl Fn(&Row) -> f64) -> String {
    let range = |value: &dyn Fn(&Row) -> f64| {
        let all = rows.iter().map(|row| value(row).max(1.0));
        let low = all.clone().fold(f64::MAX, f64::min).log10().floor();
        let high = all.fold(1.0, f64::max).log10().ceil();
        (low, high.max(low + 1.0))
    };
    let mut svg = format!("<text x='0' y='-10' font-weight='bold'>{title}</text>");
    if rows.is_empty() {
        return svg;
    }
    let ((left, right), (bottom, top)) = (range(&x), range(&y));
    let across = |value: f64| (value.max(1.0).log10() - left) / (right - left) * WIDTH;
    let up = |value: f64| HEIGHT - (value.max(1.0).log10() - bottom) / (top - bottom) * HEIGHT;
    for power in bottom as i32..=top as i32 {
        let height = up(10f64.powi(power));
        let _ = write!(
            svg,
            "<path d='M0 {height}H{WIDTH}' stroke='#ddd'/>\
             <text x='-4' y='{height}' text-anchor='end'>1e{power}</text>"
        );
    }
    for power in left as i32..=right as i32 {
        let _ = write!(
            svg,
            "<text x='{}' y='{}' text-anchor='middle'>1e{power}</text>",
            across(10f64.powi(power)),
            HEIGHT + 14.0
        );
    }
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.what.as_str()) {
            names.push(&row.what);
        }
    }
    for (at, name) in names.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut path = String::new();
        for row in rows.iter().filter(|row| row.what == *name) {
            let (x, y) = (across(x(row)), up(y(row)));
            let _ = write!(
                path,
                "{}{x:.1} {y:.1}",
                if path.is_empty() { 'M' } else { 'L' }
            );
            let _ = write!(
                svg,
                "<circle cx='{x:.1}' cy='{y:.1}' r='3' fill='{colour}'/>"
            );
        }
        let _ = write!(
            svg,
            "<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>\
             <text x='{}' y='{}' fill='{colour}'>{name}</text>",
            (at % 2) as f64 * WIDTH / 2.0,
            HEIGHT + 30.0 + (at / 2) as f64 * 13.0
        );
    }
    svg
}
