//! The program: what was asked for is done by the libraries, and what came of it is said here.

#![forbid(unsafe_code)]

mod args;
mod demo;
mod families;
mod inspect;
mod meter;
mod output;
mod pack;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use output::{Failure, Status, fail};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error).into(),
    };
    let (command, json, done) = match &cli.command {
        Command::Pack(args) => ("pack", args.voice.json, pack::run(args)),
        Command::Verify(args) => ("verify", args.voice.json, verify::run(args)),
        Command::Inspect(args) => ("inspect", args.json, inspect::run(args)),
        Command::Families(args) => ("families", args.json, families::run(args)),
        Command::Demo(args) => ("demo", false, demo::run(args)),
    };
    done.unwrap_or_else(|failure| fail(command, json, &failure)).into()
}

/// Tells what is wrong with the command line, or prints the help that was asked for.
fn refuse(error: &clap::Error) -> Status {
    let told = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if told {
        return match output::print(&error.render().to_string()) {
            Ok(()) => Status::Good,
            Err(error) => fail("help", false, &Failure::Stdout(error)),
        };
    }
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    if arguments.any(|argument| argument == "--json") {
        return fail(&command, true, &Failure::Usage(error.render().to_string()));
    }
    // clap's own form: it is on stderr, and has the usage below the message.
    let _ = error.print();
    Status::Failed
}
