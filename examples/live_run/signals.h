// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace freshet::live {

/// From now on SIGINT, SIGTERM and SIGHUP are counted instead of ending the process.
void count_interrupts();
int interrupt_count();

}  // namespace freshet::live
