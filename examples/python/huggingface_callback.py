# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer publishes what it trains: Trainer(…, callbacks=[PublishCallback("my-model")]). Copy it into your code."""
import transformers

import freshet
import freshet.torch


class PublishCallback(transformers.TrainerCallback):
    """Publishes every so many optimizer steps, and at the end. In a run of several ranks only rank 0 has a publisher."""

    def __init__(self, name, every=100):
        self.name, self.every = name, every
        self.publisher = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and self.publisher is None:  # A second train() goes on with the first one's.
            self.publisher = freshet.Publisher(self.name)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            loss = {"loss": state.log_history[-1]["loss"]} if state.log_history and "loss" in state.log_history[-1] else {}
            freshet.torch.publish(self.publisher, model, step=state.global_step, metrics=loss)

    def close(self):
        """After train(), when servers that come late need the model no more."""
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None
