// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The output of the program. Results go to stdout, as one JSON object a line or as text for people; everything else is
/// a line on stderr. Each line leaves at once, in one write, so that a reader of a pipe sees versions as they come.
///
/// One thread at a time.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/text.h"

namespace freshet::cli {

/// Keys keep the order in which they are written.
using Json = nlohmann::ordered_json;

class Output {
 public:
  bool json = false;  ///< Set by --json.
  /// Set by a command that serves others for as long as it runs: a line that stdout has no room for (a log on a full
  /// disk) must not end it. The line is lost, stderr says so once, and lost_lines() counts it.
  bool outlives_full_disk = false;

  /// Prints one of the two: the object as a line, or the text, which may have several (a newline is added). Characters
  /// of either that could command a terminal are made harmless. cancelled when the reader of stdout went away: closed()
  /// is then true and the program ends quietly.
  Status emit(const Json& object, std::string_view text);

  /// The same with lines of text alone; no newline is added.
  Status write(std::string_view text);

  /// Clears the terminal, and shows the text instead of the old one.
  Status redraw(std::string_view text);

  /// "freshet: TEXT" on stderr, as one line whatever the text holds.
  void log(std::string_view text) const;

  bool closed() const { return closed_; }
  std::uint64_t lost_lines() const { return lost_; }

 private:
  Status write_bytes(std::string_view bytes);
  Status lose(int error);

  bool closed_ = false;
  bool is_full_ = false;  ///< The last write failed so.
  bool cut_off_ = false;  ///< After a part of its bytes.
  std::uint64_t lost_ = 0;
};

/// One line, as a terminal may be shown it. Bytes that are not UTF-8 (a tag from a hostile file) are replaced, never an
/// exception.
std::string to_line(const Json& value);

/// "1.5 GB" in powers of 1000.
std::string human_bytes(std::uint64_t bytes);

/// "2026-11-27 12:13" in the user's time zone; "-" for 0, a time that nobody told.
std::string date_text(std::int64_t unix_ns);

/// How many columns a text of one line takes on a terminal: one for each code point.
std::size_t columns_of(std::string_view text);

/// Words of a text in lines of at most `columns`, of which `indent` are blank: but for the first line, before which the
/// caller has written as many. A longer word has a line of its own. No newline at the end.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns);

/// Rows in aligned columns, the first row being the headings. No newline at the end.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace freshet::cli
