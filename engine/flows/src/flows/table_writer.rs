//! Writer of one Parquet table (flows, DNS or DHCP): one file for each interval of the wall clock
//! in which there were rows.

use super::{
    file::{MOST_ROWS, ParquetFile, ParquetFileError},
    row::ParquetRow,
};
use std::path::PathBuf;
use wqcap_core::time::system_ns;
use wqcap_files::folder::file_list::FileList;

/// Result of writing a Parquet table: complete files and failures.
#[derive(Default)]
pub(super) struct TableResult {
    /// Complete files of the Parquet table.
    pub(super) files: FileList,
    /// First error that prevented rows of the Parquet table from being written.
    pub(super) failures: Vec<String>,
    /// Number of rows of the Parquet table that were not written.
    pub(super) unwritten: u64,
}

/// Writer of one Parquet table, one file per interval.
pub(super) struct TableWriter<R> {
    dir: PathBuf,
    /// Rows that wait for the next Parquet row group.
    rows: Vec<R>,
    file: Option<ParquetFile>,
    written: TableResult,
}

impl<R: ParquetRow> TableWriter<R> {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            written: TableResult {
                files: FileList::new(&dir),
                ..TableResult::default()
            },
            dir,
            rows: Vec::new(),
            file: None,
        }
    }

    /// Moves the rows of `batch` into the next Parquet row group, and writes the group if another
    /// `most` rows, the size of a batch, would not fit.
    pub(super) fn take(&mut self, batch: &mut Vec<R>, most: usize) {
        self.rows.append(batch);
        if self.rows.len() + most > MOST_ROWS {
            self.write_rows();
        }
    }

    /// Writes the collected rows as a Parquet row group.
    fn write_rows(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let written = match &mut self.file {
            Some(file) => file.write(&mut self.rows),
            none => match ParquetFile::create::<R>(&self.dir, system_ns()) {
                Ok(file) => none.insert(file).write(&mut self.rows),
                Err(failure) => {
                    self.written.unwritten += self.rows.len() as u64;
                    Err(failure)
                }
            },
        };
        self.rows.clear();
        if let Err(failure) = written {
            self.fail(failure);
        }
    }

    pub(super) fn end_interval(&mut self) {
        self.write_rows();
        match self.file.as_mut().map(ParquetFile::finish) {
            Some(Ok(path)) => {
                self.written.files.push(&path);
                self.file = None;
            }
            Some(Err(failure)) => self.fail(failure),
            None => {}
        }
    }

    /// Discards the open Parquet file after a failure, if there is one; the next rows start another
    /// file.
    fn fail(&mut self, failure: ParquetFileError) {
        if let Some(file) = self.file.take() {
            self.written.unwritten += file.rows();
            file.discard();
        }
        tracing::error!("{failure}");
        // Only the first failure is kept: a full disk would repeat it every interval.
        if self.written.failures.is_empty() {
            self.written.failures.push(failure.to_string());
        }
    }

    /// Ends the Parquet table's last interval and returns the result.
    pub(super) fn finish(mut self) -> TableResult {
        self.end_interval();
        self.written
    }
}
