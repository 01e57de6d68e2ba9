// SPDX-License-Identifier: Apache-2.0
/// Where lines go that are no answer to a call.

#include "core/base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace freshet {
namespace {

TEST(Log, GoesToStderrUntilThereIsAHookAndAfterItWasTakenAway) {
  testing::internal::CaptureStderr();
  log_line(LogLevel::warning, "one");
  std::string told;
  set_log_hook([&](LogLevel level, const std::string& line) {
    told += (level == LogLevel::info ? "info " : "warning ") + line;
  });
  log_line(LogLevel::info, "two");
  set_log_hook(nullptr);
  log_line(LogLevel::info, "three");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "freshet: one\nfreshet: three\n");
  EXPECT_EQ(told, "info two");
}

TEST(Log, TakesLinesOfSeveralThreadsWhileTheHookChanges) {
  constexpr int kLines = 1000;
  Mutex mutex;
  int lines = 0;
  const LogHook hook = [&](LogLevel, const std::string&) {
    const MutexLock lock(mutex);
    ++lines;
  };
  set_log_hook(hook);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([] {
      for (int line = 0; line < kLines; ++line) log_line(LogLevel::info, "line");
    });
  }
  for (int change = 0; change < kLines; ++change) set_log_hook(hook);
  for (std::thread& thread : threads) thread.join();
  set_log_hook(nullptr);
  EXPECT_EQ(lines, 3 * kLines);
}

}  // namespace
}  // namespace freshet
