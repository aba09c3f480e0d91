//! Results on stdout: one JSON document, or tables for people.

use crate::failure::{Failure, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write, stdout};

/// Prints `document` as the one JSON document of this command.
pub(crate) fn json(document: &impl Serialize) -> Result<()> {
    as_json(serde_json::to_string_pretty(document))
}

/// Prints `document` in one line: a command that has no end of its own prints one for each thing that it has to say.
pub(crate) fn json_line(document: &impl Serialize) -> Result<()> {
    as_json(serde_json::to_string(document))
}

fn as_json(text: serde_json::Result<String>) -> Result<()> {
    text_line(&text.map_err(|error| Failure::run(format!("the result cannot be written as JSON: {error}")))?)
}

/// Prints a line. A reader who has gone away, such as `head`, is no error.
pub(crate) fn text_line(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::environment(format!("stdout cannot be written to: {error}")))
        }
        _ => Ok(()),
    }
}

/// Rows of columns, the first aligned left and the others right.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(header.iter().map(ToString::to_string));
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A number for people: three digits that mean something, thousands apart.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as u64),
    }
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Rounds for JSON: more digits than a measurement has are noise.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["link", "µs"]);
        table.row(["shm".into(), "0.60".into()]);
        table.row(["udp over lo".into(), "3.8".into()]);
        assert_eq!(table.render(), "link           µs\nshm          0.60\nudp over lo   3.8");
    }

    #[test]
    fn figures_are_readable() {
        assert_eq!(figure(0.604), "0.60");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(1_234_567.8), "1 234 568");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1 000");
        assert_eq!(rounded(1.23456), 1.235);
    }
}
