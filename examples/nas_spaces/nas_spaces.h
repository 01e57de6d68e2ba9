// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Search spaces of neural architectures, random and evolved catalogs of them, and the search that makes the latter:
/// seeded, the same on every machine, a million models in well under a minute.
///
/// A user's own program has such a space; here examples/nas_evolution searches one, and benchmarks and tests take their
/// models from all of them. It lies among the examples because that is the one place that all three may include.
///
/// In reading order:
///   1. genes.h: a candidate as a search sees it, a row of small numbers.
///   2. palette.h, network.h: the graph that genes stand for, its slot ids, and the Architecture made of it.
///   3. spaces.h: the spaces.
///   4. evolution.h, catalog.h: aging evolution, and catalogs of models.
///   5. corpus.h: graphs of published networks, from a file.

#include "examples/nas_spaces/catalog.h"
#include "examples/nas_spaces/corpus.h"
#include "examples/nas_spaces/evolution.h"
#include "examples/nas_spaces/genes.h"
#include "examples/nas_spaces/network.h"
#include "examples/nas_spaces/palette.h"
#include "examples/nas_spaces/random.h"
#include "examples/nas_spaces/spaces.h"
