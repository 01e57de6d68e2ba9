// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The trainer that is not changed: a program that reads a set, epoch by epoch, each in another order, with processes
/// side by side. It knows nothing of tiers. What it is told and what it answers are lines.
///
///   said      "ready PID" when it begins
///   told      "epoch N"; it ends with its input
///   said      "read BYTES SUM SECONDS WAITED_S": of all its processes; SECONDS by the clock, WAITED_S in opens and
///   reads
///
/// Its words: read FOLDER LIST READERS PIECE EACH WORK_US [FRESHET]
///   READERS 1: it reads by itself, without a process beside it.
///   EACH 1: each process reads the whole set; 0: its share.
///   WORK_US: how long a process computes after each file.
///   FRESHET: the command, which is told each epoch's order as the epoch begins (`tier upcoming`).

namespace freshet::benchmarks {

/// main() of the program in that role.
int run_reader(int count, char** words);

}  // namespace freshet::benchmarks
