#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains classical networks on scikit-learn's bundled data sets and writes their learning curves.

usage: record_classic.py MODEL --data SET [option…]     (CSV on standard output)

A row per step: the loss of that step's batch, computed before the update, and the loss on a fixed held-out set after
it. Passes and gradients are written out in numpy; nothing is drawn but from --seed. The Python environment is made by
record_environment.sh. What benchmarks/schedules/data/*.csv other than text_*.csv were made with.
"""

import argparse
import math
import sys

import numpy as np
from sklearn import datasets

LOADERS = {
    "digits": datasets.load_digits,
    "cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
    "diabetes": datasets.load_diabetes,
}


class Data:
    """Features are standardised with the training part's mean and deviation; a third is held out."""

    def __init__(self, name, random, training_rows, label_noise, scale):
        bunch = LOADERS[name]()
        order = random.permutation(len(bunch.data))
        x, y = bunch.data[order].astype(np.float64), bunch.target[order]
        held_out = len(x) // 3
        self.held_x, self.held_y = x[:held_out], y[:held_out]
        self.x, self.y = x[held_out:], y[held_out:]
        if training_rows:
            self.x, self.y = self.x[:training_rows], self.y[:training_rows]
        self.regression = name == "diabetes"
        if self.regression:
            mean, deviation = self.y.mean(), self.y.std()
            self.y, self.held_y = (self.y - mean) / deviation, (self.held_y - mean) / deviation
        self.outputs = 1 if self.regression else int(y.max()) + 1
        if name == "digits":
            self.x, self.held_x = self.x / 16 * scale, self.held_x / 16 * scale
        else:
            mean, deviation = self.x.mean(0), self.x.std(0) + 1e-9
            self.x, self.held_x = (self.x - mean) / deviation * scale, (self.held_x - mean) / deviation * scale
        if label_noise > 0:
            wrong = random.random(len(self.y)) < label_noise
            self.y = np.where(wrong, random.integers(0, self.outputs, len(self.y)), self.y)


def cross_entropy(scores, y):
    """The mean loss, and its gradient by the scores."""
    scores = scores - scores.max(1, keepdims=True)
    exponentials = np.exp(scores)
    sums = exponentials.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = float((np.log(sums[:, 0]) - scores[rows, y]).mean())
    gradient = exponentials / sums
    gradient[rows, y] -= 1
    return loss, gradient / len(y)


def squares(outputs, y):
    difference = outputs - y
    return float((difference**2).mean()), 2 * difference / difference.size


class Network:
    """`parameters` is a list of arrays; `loss(x, y)` the mean loss; `gradients(x, y)` that and a list of gradients."""

    def __init__(self, data):
        self.regression = data.regression

    def compare(self, outputs, x, y):
        return squares(outputs, y[:, None]) if self.regression else cross_entropy(outputs, y)

    def loss(self, x, y):
        return self.compare(self.forward(x)[-1], x, y)[0]


class Perceptron(Network):
    """Fully connected; without hidden layers it is logistic (or linear) regression."""

    def __init__(self, data, hidden, random, gain):
        super().__init__(data)
        widths = [data.x.shape[1], *hidden, self.output_width(data)]
        self.parameters = []
        for inputs, outputs in zip(widths, widths[1:]):
            self.parameters.append(random.normal(size=(inputs, outputs)) * gain / math.sqrt(inputs))
            self.parameters.append(np.zeros(outputs))

    def output_width(self, data):
        return data.outputs

    def forward(self, x):
        values = [x]
        layers = len(self.parameters) // 2
        for layer in range(layers):
            x = x @ self.parameters[2 * layer] + self.parameters[2 * layer + 1]
            if layer + 1 < layers:
                x = np.maximum(x, 0)
            values.append(x)
        return values

    def gradients(self, x, y):
        values = self.forward(x)
        loss, delta = self.compare(values[-1], x, y)
        found = []
        for layer in reversed(range(len(self.parameters) // 2)):
            found[:0] = [values[layer].T @ delta, delta.sum(0)]
            if layer:
                delta = (delta @ self.parameters[2 * layer].T) * (values[layer] > 0)
        return loss, found


class Autoencoder(Perceptron):
    """Its target is its input."""

    def output_width(self, data):
        return data.x.shape[1]

    def compare(self, outputs, x, y):
        return squares(outputs, x)


class Convolutional(Network):
    """Digits, 8 x 8: a 3 x 3 convolution (ReLU), 2 x 2 means, a dense layer."""

    def __init__(self, data, channels, random):
        super().__init__(data)
        self.channels = channels
        self.parameters = [
            random.normal(size=(9, channels)) * math.sqrt(2 / 9),
            np.zeros(channels),
            random.normal(size=(9 * channels, data.outputs)) * math.sqrt(1 / (9 * channels)),
            np.zeros(data.outputs),
        ]

    def forward(self, x):
        images = x.reshape(-1, 8, 8)
        patches = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2)).reshape(-1, 36, 9)
        maps = np.maximum(patches @ self.parameters[0] + self.parameters[1], 0)
        pooled = maps.reshape(-1, 3, 2, 3, 2, self.channels).mean((2, 4)).reshape(len(x), -1)
        return patches, maps, pooled, pooled @ self.parameters[2] + self.parameters[3]

    def gradients(self, x, y):
        patches, maps, pooled, scores = self.forward(x)
        loss, delta = self.compare(scores, x, y)
        below = (delta @ self.parameters[2].T).reshape(-1, 3, 1, 3, 1, self.channels) / 4
        below = np.broadcast_to(below, (len(x), 3, 2, 3, 2, self.channels)).reshape(maps.shape) * (maps > 0)
        kernel = np.einsum("npk,npc->kc", patches, below)
        return loss, [kernel, below.sum((0, 1)), pooled.T @ delta, delta.sum(0)]


class Optimizer:
    def __init__(self, kind, parameters, decay):
        self.kind, self.decay, self.steps = kind, decay, 0
        self.mean = [np.zeros_like(p) for p in parameters]
        self.square = [np.zeros_like(p) for p in parameters]

    def step(self, parameters, gradients, rate):
        self.steps += 1
        for p, g, mean, square in zip(parameters, gradients, self.mean, self.square):
            g = g + self.decay * p
            if self.kind == "sgd":
                p -= rate * g
            elif self.kind == "momentum":
                mean *= 0.9
                mean += g
                p -= rate * mean
            else:
                mean += 0.1 * (g - mean)
                square += 0.001 * (g * g - square)
                corrected = square / (1 - 0.999**self.steps)
                p -= rate / (1 - 0.9**self.steps) * mean / (np.sqrt(corrected) + 1e-8)


def rate_factor(options, step):
    """Of 1-based `step`: straight lines between the points of --rate, times a cosine that restarts."""
    factor = np.interp(step, [p[0] for p in options.rate], [p[1] for p in options.rate]) if options.rate else 1.0
    if options.cosine:
        factor *= 0.5 + 0.5 * math.cos(math.pi * ((step - 1) % options.cosine) / options.cosine)
    return factor


def point(text):
    step, factor = text.split(":")
    return int(step), float(factor)


def batches(rows, size, random):
    """Shuffled epochs; an incomplete last batch is left out."""
    size = min(size, rows)
    while True:
        order = random.permutation(rows)
        for start in range(0, rows - size + 1, size):
            yield order[start : start + size]


def build(options, data, random):
    if options.model == "cnn":
        return Convolutional(data, options.hidden[0], random)
    if options.model == "autoencoder":
        return Autoencoder(data, options.hidden, random, options.gain)
    hidden = [] if options.model == "logistic" else options.hidden
    return Perceptron(data, hidden, random, options.gain)


def parse():
    parser = argparse.ArgumentParser(description="Records a learning curve of a classical network")
    parser.add_argument("model", choices=["logistic", "mlp", "cnn", "autoencoder"])
    parser.add_argument("--data", choices=sorted(LOADERS), required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "adam"], default="sgd")
    parser.add_argument("--hidden", type=int, nargs="*", default=[32], help="units of each hidden layer")
    parser.add_argument("--gain", type=float, default=1.4, help="of the initial weights")
    parser.add_argument("--scale", type=float, default=1.0, help="of the features")
    parser.add_argument("--decay", type=float, default=0.0, help="of the weights")
    parser.add_argument("--rate", nargs="*", default=[], type=point, metavar="STEP:FACTOR",
                        help="the rate's factor, straight lines between these points")
    parser.add_argument("--cosine", type=int, default=0, help="the rate falls along a cosine and restarts")
    parser.add_argument("--training-rows", type=int, default=0, help="use no more for training")
    parser.add_argument("--label-noise", type=float, default=0.0, help="share of random training labels")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse()
    random = np.random.default_rng(options.seed)
    data = Data(options.data, random, options.training_rows, options.label_noise, options.scale)
    network = build(options, data, random)
    optimizer = Optimizer(options.optimizer, network.parameters, options.decay)
    print(f"record_classic: {len(data.x)} rows to train on, {len(data.held_x)} held out", file=sys.stderr)
    print("step,loss,eval_loss")
    for step, rows in zip(range(1, options.steps + 1), batches(len(data.x), options.batch, random)):
        loss, gradients = network.gradients(data.x[rows], data.y[rows])
        optimizer.step(network.parameters, gradients, options.learning_rate * rate_factor(options, step))
        held_out = network.loss(data.held_x, data.held_y)
        print(f"{step},{loss:.7g},{held_out:.7g}")


if __name__ == "__main__":
    main()
