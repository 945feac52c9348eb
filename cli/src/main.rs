//! The program: what was asked for is done by the libraries, and what came of it is said here.

#![forbid(unsafe_code)]

mod args;
mod card;
mod demo;
mod families;
mod fit;
mod hub;
mod inspect;
mod meter;
mod model;
mod output;
mod pack;
mod publish;
mod verify;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use glyd_format::simd::Simd;
use output::{Failure, Status, fail};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error).into(),
    };
    if let Err(problem) = Simd::asked() {
        return fail(None, false, &Failure::Usage(problem)).into();
    }
    let (command, json, done) = match &cli.command {
        Command::Pack(args) => ("pack", args.voice.json, pack::run(args)),
        Command::Verify(args) => ("verify", args.voice.json, verify::run(args)),
        Command::Inspect(args) => ("inspect", args.json, inspect::run(args)),
        Command::Fit(args) => ("fit", args.voice.json, fit::run(args)),
        Command::Families(args) => ("families", args.json, families::run(args)),
        Command::Card(args) => ("card", args.voice.json, card::run(args)),
        Command::Publish(args) => ("publish", args.voice.json, publish::run(args)),
        Command::Demo(args) => ("demo", false, demo::run(args)),
    };
    done.unwrap_or_else(|failure| fail(Some(command), json, &failure)).into()
}

/// Tells what is wrong with the command line, or prints the help that was asked for.
fn refuse(error: &clap::Error) -> Status {
    let told = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if told {
        return match output::print(&error.render().to_string()) {
            Ok(()) => Status::Good,
            Err(error) => fail(None, false, &Failure::Stdout(error)),
        };
    }
    // clap's own form: it has the usage below the message.
    let _ = error.print();
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|argument| argument == "--json") {
        let named = arguments.iter().find(|argument| !argument.starts_with('-')).map(String::as_str);
        let command = named.filter(|named| Cli::command().find_subcommand(named).is_some());
        let message = error.to_string();
        let message = message.trim_start_matches("error: ").trim_end().to_owned();
        output::print_failure(command, &Failure::Usage(message));
    }
    Status::Failed
}
