// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The text: read, refused when it is none, and split into a training and a held-out part.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::live {

using Text = std::vector<std::uint8_t>;

struct Corpus {
  Text training;
  Text held_out;
};

inline constexpr const char* kLicenceFolder = "/usr/share/common-licenses";
inline constexpr std::uint64_t kTextBytesMin = 4096;
inline constexpr std::uint64_t kTextBytesMax = std::uint64_t{1} << 30;

/// The regular files of Debian's licence folder, sorted; not_found says to give --text.
Result<std::vector<std::string>> default_text_files();

/// Reads the files and splits them. Errors name the file: not_found; invalid_argument for a folder, an empty file, one
/// that is not text, or too little text altogether.
Result<Corpus> read_corpus(const std::vector<std::string>& files);

/// invalid_argument when the bytes are empty or not text (a zero byte, or many control characters).
Status check_is_text(const std::string& name, const Text& bytes);

/// Every tenth piece of 2048 bytes is held out, the first of them early, so that short texts have one too.
Corpus split(const Text& text);

}  // namespace freshet::live
