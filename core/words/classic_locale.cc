// SPDX-License-Identifier: Apache-2.0
#include "core/words/classic_locale.h"

#include <locale>

namespace freshet {
namespace {

/// One for the process, never freed: threads may use it until the end. Where there is no memory for it, uselocale(0)
/// leaves the thread's locale as it is.
locale_t classic() {
  static const locale_t locale = ::newlocale(LC_ALL_MASK, "C", static_cast<locale_t>(nullptr));
  return locale;
}

}  // namespace

ClassicLocale::ClassicLocale() : before_(::uselocale(classic())) {}

ClassicLocale::~ClassicLocale() { (void)::uselocale(before_); }

WordStream::WordStream(const std::string& text) : std::istringstream(text) { imbue(std::locale::classic()); }

}  // namespace freshet
