// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Numbers in text look the same in every process. A program that a room is part of may have set a locale whose decimal
/// sign is a comma (setlocale() in a toolkit or in Python, std::locale::global()). Our own numbers go through
/// std::from_chars and fmt, which know no locale. These two are for what does know it: a library's parser, and streams.

#include <locale.h>

#include <sstream>
#include <string>

namespace freshet {

/// While one lives, the C library reads and writes numbers in this thread as it does at a program's start, whatever
/// setlocale() said. Lives and ends in one thread.
class [[nodiscard("the thread's locale comes back when this object ends")]] ClassicLocale {
 public:
  ClassicLocale();
  ~ClassicLocale();
  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;

 private:
  locale_t before_;
};

/// The words and numbers of a text, read with >>. A plain stream would follow std::locale::global(), and some countries
/// group digits with a space: "12 34" would be one number there.
class WordStream : public std::istringstream {
 public:
  explicit WordStream(const std::string& text);
};

}  // namespace freshet
