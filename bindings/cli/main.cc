// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/program.h"

int main(int argc, char** argv) { return freshet::cli::run(argc, argv); }
