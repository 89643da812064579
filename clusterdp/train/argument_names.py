"""Checks of arguments: a wrong call is one line with the right form. Names of arguments and methods of other libraries'
trainers (Keras, Lightning, skorch, accelerate, Hugging Face, Apex, Paddle, MXNet) have their replacements here.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from clusterdp.errors import ConfigError
from clusterdp.wording import did_you_mean

if TYPE_CHECKING:  # launch() and StopSignal check their arguments in processes that have not imported torch
    import torch

# The advice -> the argument names for which the error gives this advice.
INSTEAD = {
    "Write fit(train, val)": "validation_data validation val_data valid_data eval_data val_dataset eval_dataset "
    "val_dataloaders val_dataloader eval_dataloader val_loader valid_loader dl_val",
    "Write fit(train)": "train_data train_dataset train_dataloaders train_dataloader train_loader train_iter loader "
    "dl_train",
    "Pass inputs and targets as one: fit((x, y))": "x y inputs targets labels",
    "Pass the data itself: evaluate(data)": "dataloaders test_data test_dataloaders test_dataset datamodule",
    "Split the data beforehand, as by torch.utils.data.random_split, and pass fit(train, val)": "validation_split",
    "Write val_options={'batch_size': ...}": "validation_batch_size val_batch_size eval_batch_size "
    "per_device_eval_batch_size",
    "Write fit(epochs=...)": "max_epochs num_epochs num_epoch n_epochs nb_epoch num_train_epochs",
    "Write fit(max_steps=...), in batches": "num_steps num_iters max_iters max_iterations num_iterations total_steps",
    "Write resources.time in the config; or call trainer.stop() in Trainer(on_step=[...])": "max_time",
    "Write fit(limit_batches=...)": "steps_per_epoch validation_steps limit_train_batches limit_val_batches "
    "limit_test_batches max_eval_batches iters_per_epoch batches_per_epoch max_train_samples",
    "Pass a part of the data, such as torch.utils.data.Subset(data, range(1000))": "limit_predict_batches "
    "overfit_batches",
    "Write fit(fast_dev_run=True)": "num_sanity_val_steps sanity_check",
    "Write fit(val_every=...), in epochs": "check_val_every_n_epoch validation_freq eval_freq eval_every val_interval",
    "Write fit(val_every_steps=...), or fit(val_every=...), in epochs": ""
    "val_check_interval eval_steps eval_strategy evaluation_strategy do_eval eval_on_start",
    "A run goes on from where it was by itself": "initial_epoch begin_epoch ckpt_path resume resume_from_checkpoint",
    "Write Trainer(callbacks=[...])": "callback event_handlers",
    "Write Trainer(on_epoch=[...]): functions of (trainer, row), such as early_stopping()": "epoch_end_callback "
    "on_epoch_end early_stopping early_stop patience on_train_epoch_end on_train_epoch_start on_epoch_begin "
    "on_epoch_start on_log on_save",
    "Pass an object with on_validation(trainer, row) in Trainer(callbacks=[...])": "on_validation_end "
    "on_validation_epoch_end on_evaluate eval_end_callback eval_batch_end_callback",
    "Write Trainer(on_epoch=[keep_best('val_loss')]), and trainer.load_best() after fit()": "save_best_only "
    "load_best_model_at_end metric_for_best_model greater_is_better monitor mode",
    "Write Trainer(callbacks=[early_stopping(load_best=True)])": "restore_best_weights",
    "Write Trainer(on_step=[...]): functions of (trainer, values)": "batch_end_callback on_batch_end "
    "on_train_batch_end on_train_batch_start on_batch_begin on_step_end",
    "A line an epoch is printed, and a terminal shows the progress": "verbose progress_bar enable_progress_bar "
    "show_progress disable_tqdm quiet",
    "Write fit(log_every=...), in steps": "log_every_n_steps log_interval log_freq log_steps logging_steps print_every "
    "report_every",
    "It is for the loss, such as CrossEntropyLoss(weight=...)": "class_weight class_weights",
    "Pass sampler=WeightedRandomSampler(...), or weigh the loss in forward=": "sample_weight sample_weights",
    "Write num_workers=...": "workers n_workers num_processes_loader dataloader_num_workers use_multiprocessing",
    "The config has it, as train.global_batch_size": "global_batch_size total_train_batch_size global_train_batch_size",
    "Write fit(batch_size=...), which is of one rank": "train_batch_size per_device_train_batch_size bs batchsize",
    "Write collate_fn=...": "collate data_collator batchify_fn batchify",
    "Split the data beforehand, and pass fit(train, val)": "train_split eval_split",
    "Write loss=...": "criterion loss_fn loss_function losses objective",
    "Write optimizer=..., an object": "optimizers optim opt",
    "It is for the optimizer": "lr learning_rate weight_decay momentum optimizer_params optim_args learning_rates "
    "adam_beta1 adam_beta2 adam_epsilon betas eps",
    "Write scheduler=..., such as LambdaLR(optimizer, warmup_cosine(100, steps))": "warmup_steps "
    "warmup_ratio num_warmup_steps lr_scheduler_type",
    "Train the model before you pass it, or load it: model.load_state_dict(...)": "initializer arg_params aux_params "
    "pretrained weights checkpoint",
    "Write model=..., an object": "module net network backbone",
    "Write scheduler=...": "lr_scheduler schedulers lr_schedule",
    "Write metrics=...": "metric eval_metric eval_metrics compute_metrics validation_metric metrics_dict",
    "Write Trainer(amp=...): 'bf16', 'fp16' or O0 to O3": "precision fp16 bf16 use_amp mixed_precision amp_level",
    "Write Trainer(accumulate=...)": "accumulate_grad_batches gradient_accumulation_steps accumulation_steps "
    "gradient_accumulation_plugin",
    "Write Trainer(clip_norm=...)": "gradient_clip_val max_grad_norm grad_clip clip_grad_norm gradient_clip",
    "Write Trainer(clip_value=...)": "clipvalue gradient_clip_value gradient_clip_algorithm",
    "The config has it, as resources": "devices gpus accelerator num_nodes num_gpus tpu_cores num_processes",
    "A rank has one device, job.device; the config says how many ranks": "device ctx context devices_ids device_ids "
    "device_placement local_rank selected_gpus cpu",
    "The config has it, as train.strategy": "strategy distributed_backend kvstore plugins fsdp fsdp_config "
    "deepspeed fsdp_plugin deepspeed_plugin",
    "The config has it, as train.compile": "compile jit_compile torch_compile run_eagerly dynamo_backend "
    "steps_per_execution",
    "The config has it, as train.recompute": "gradient_checkpointing activation_checkpointing",
    "Call trainer.summary()": "enable_model_summary weights_summary",
    "Run `clusterdp profile`": "profiler profile",
    "The config has it, as train.sync_batchnorm": "sync_bn sync_batchnorm convert_syncbn_model",
    "The config has it, as metrics.to": "logger loggers log_dir report_to tensorboard wandb log_with logging_dir",
    "The config has it, as checkpoint": "enable_checkpointing checkpoint_callback save_steps save_every checkpoint_dir "
    "save_freq save_interval save_strategy save_total_limit save save_model checkpoint_every",
    "The config has it, as run_dir": "default_root_dir output_dir save_dir work_dir project_dir run_name",
    "The config has it, as train.seed": "seed random_seed random_state",
    "The config has it, as train.deterministic": "deterministic benchmark",
    "Write fit(epochs=...), and early_stopping(patience=...)": "min_epochs min_steps",
    "Write early_stopping(least=...)": "min_delta delta early_stopping_threshold",
    "The config has it, as train.amp: {level: O2, loss_scale: 128}": "opt_level loss_scale keep_batchnorm_fp32 "
    "init_scale growth_interval amp_configs",
    "The level of train.amp decides it": "cast_model_type patch_torch_functions master_weights cast_model_outputs "
    "num_losses min_loss_scale max_loss_scale auto_scale_loss",
    "The config has it, as train.ddp; or write Trainer(wrap={...})": "find_unused_parameters "
    "ddp_find_unused_parameters delay_allreduce message_size gradient_average allreduce_always_fp32 bucket_cap_mb "
    "ddp_bucket_cap_mb static_graph ddp_kwargs",
    "Call torch.autograd.set_detect_anomaly(True) before fit()": "detect_anomaly",
    "fit() divides data sets among the ranks by itself": "use_distributed_sampler replace_sampler_ddp split_batches "
    "dispatch_batches even_batches distributed_batch_reader",
    "Write loss=nn.CrossEntropyLoss(label_smoothing=...)": "label_smoothing_factor label_smoothing",
    "Write drop_last=...": "dataloader_drop_last",
    "Write pin_memory=...": "dataloader_pin_memory",
    "Write persistent_workers=...": "dataloader_persistent_workers",
    "Weigh the losses in Trainer(forward=...)": "loss_weights weighted_metrics",
    "Write Trainer(forward=...), a function of (trainer, batch)": "predict_nonlinearity remove_unused_columns "
    "preprocess_logits_for_metrics compute_loss_func",
    "Make another Trainer to begin anew": "warm_start model_init",
    "Write ema = clusterdp.train.Ema(model, 0.999) and Trainer(state={'ema': ema})": "ema ema_decay",
    "Write Trainer(callbacks=[clusterdp.train.Swa(model, first_epoch=8)])": "swa swa_lrs swa_epoch_start",
    "Write fit(sampler=...)": "group_by_length train_sampler batch_sampler_train",
    "Pass a loader, or options of a DataLoader, to fit(train, val)": "iterator_train iterator_valid dataset "
    "dataloader_config data_loader use_caching reload_dataloaders_every_n_epochs",
    "Leave it out: sizes and rates are not searched": "auto_find_batch_size auto_scale_batch_size auto_lr_find "
    "lr_find scale_batch_size",
    "Write scheduler_every='step' or 'epoch'": "step_scheduler_with_optimizer interval",
    "Each checkpoint has all random states": "rng_types",
    "Evaluations run without gradients": "inference_mode",
    "Leave it out": "barebones kwargs_handlers allow_missing force_rebind force_init ignore_data_skip sparse_row_id_fn",
    "Pass an object with on_start(trainer) in Trainer(callbacks=[...])": "on_train_begin on_train_start on_fit_start "
    "on_init_end setup",
    "Pass an object with on_end(trainer) in Trainer(callbacks=[...])": "on_train_end on_fit_end teardown",
    "Write it after fit()": "on_test_end push_to_hub",
    "Pass an object with on_exception(trainer, error) in Trainer(callbacks=[...])": "on_exception",
    "Write it in Trainer(step=...), a function of (trainer, batch)": "on_after_backward on_before_optimizer_step "
    "on_before_backward",
}
METHODS = {
    "Pass loss, optimizer and metrics to Trainer(...); the config's train.compile compiles the model": "compile",
    "Checkpoints save themselves. For the weights: torch.save(trainer.net.state_dict(), file), on rank 0": "save "
    "save_model save_weights save_checkpoint save_params save_state save_pretrained",
    "A run goes on from where it was by itself. For weights: trainer.net.load_state_dict(...)": "load load_model "
    "load_weights load_params load_checkpoint load_from_checkpoint load_state resume",
    "Call trainer.evaluate(data)": "test validate score eval evaluate_generator",
    "Call trainer.fit(train, val)": "train train_model fit_generator fit_loop partial_fit fit_one_cycle",
    "Write Trainer(step=...), a function of (trainer, batch)": "train_on_batch train_batch training_step train_step",
    "Write Trainer(forward=...), a function of (trainer, batch)": "test_on_batch eval_batch validation_step test_step "
    "predict_on_batch predict_batch predict_step",
    "Call trainer.predict(data)": "predict_proba predict_generator transform get_outputs",
    "Write Trainer(on_epoch=[...]): functions of (trainer, row)": "add_callback register_callback",
    "fit() returns the history: history.plot('history.png')": "plot plot_history plot_metrics",
    "The Trainer puts the model on this rank's device, trainer.job.device": "to cuda cpu",
    "Write Trainer(step=...), a function of (trainer, batch), with trainer.amp.backward(loss)": "manual_backward "
    "toggle_optimizer untoggle_optimizer backward forward_backward update zero_grad compute_loss scale_loss "
    "apply_collective_grads optimizer_step",
    "The Trainer does it by itself": "prepare init_optimizer init_params bind initialize create_optimizer "
    "create_scheduler prepare_data setup free_memory no_sync "
    "set_epoch",
    "Pass data to trainer.fit(train, val)": "get_train_dataloader get_eval_dataloader train_dataloader "
    "val_dataloader prepare_data_loader skip_first_batches",
    "Call trainer.job.log(name=value)": "log log_dict log_metrics log_metric",
    "Write if trainer.job.rank == 0": "is_global_zero is_main_process is_local_main_process is_world_process_zero "
    "global_rank local_rank world_size",
    "Read trainer.loop.step and trainer.loop.epoch": "global_step current_epoch num_steps",
    "Write Trainer(optimizer=..., scheduler=...)": "configure_optimizers",
    "Write Trainer(clip_norm=...)": "clip_gradients clip_grad_norm_",
    "Call trainer.job.group.agree(0)": "wait_for_everyone barrier",
    "Call trainer.stop()": "should_stop stop_training stop_iter",
    "Read trainer.net, a torch.nn.Module": "unwrap_model module get_layer layers parameters named_parameters "
    "get_weights set_weights get_params set_params add state_dict load_state_dict train_mode",
    "Read trainer.history": "callback_metrics logged_metrics get_metric",
    "Metrics are over all ranks; for a value of your own, trainer.job.group.gather(value)": "gather "
    "gather_for_metrics reduce all_gather",
    "Write Trainer(metrics=...)": "update_metric",
    "Compare settings in a sweep: see configs/sweep.yaml": "tune hyperparameter_search",
}
MEANT = {word: remedy for remedy, words in INSTEAD.items() for word in words.split()}
# The checked parts of annotations -> what fits, and its name. Other annotations accept everything.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "int": (lambda value: value == int(value), "a whole number"),
    "float": (lambda value: float(value) == value or value != value, "a number"),
    "bool": (lambda value: value in (True, False), "True or False"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping": (lambda value: isinstance(value, Mapping), "names and objects, such as {'model': model}"),
    "Callable": (lambda value: callable(value) and not isinstance(value, type), "a function"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "device": (lambda value: bool(sys.modules["torch"].device(value)), "a device, such as 'cpu' or job.device"),
    "Optimizer": (
        lambda value: hasattr(value, "param_groups") and not isinstance(value, type),
        "an object, such as torch.optim.Adam(model.parameters())",
    ),
    "Sampler": (
        lambda value: hasattr(value, "__iter__") and not isinstance(value, type),
        "an object, such as torch.utils.data.RandomSampler(data)",
    ),
    "Sized": (lambda value: hasattr(value, "__len__") and not isinstance(value, type), "data with a length"),
    "Collection": (lambda value: hasattr(value, "__len__") and not isinstance(value, type | str), "a list or a loader"),
    "type": (lambda value: isinstance(value, type), "a class"),
    "Value": (lambda value: isinstance(value, int | float) or hasattr(value, "ndim"), "a number or a tensor"),
}
KINDS["PathLike"] = KINDS["Path"]
NAMED = {  # a class, also another library's child of it -> what to pass
    "Module": "a torch.nn.Module",
    "Sequential": "a torch.nn.Sequential",
    "Tensor": "a tensor",
    "ProcessGroup": "a process group, such as torch.distributed.group.WORLD",
    "Rendezvous": "a Rendezvous, such as Rendezvous.find()",
    "Group": "a Group, such as job.group",
    "JobHandle": "the job of main(job)",
    "StopSignal": "a StopSignal",
    "History": "a History, such as that of fit()",
    "Loop": "a loop",
    "Amp": "an Amp, such as job.amp",
    "NanGuard": "a NanGuard, such as job.nan_guard(model)",
    "list": "a list",
}
KINDS |= {name: (lambda value, name=name: _is_a(value, name), text) for name, text in NAMED.items()}  # type: ignore[misc]
RIGHT = {  # instead of the name of the kind
    ("loss", "Callable"): "a function of (outputs, targets), such as torch.nn.MSELoss()",
    ("function", "Callable"): "a function of (job), as in launch(main, ranks=2)",
    ("forget", "Collection"): "a list of names, such as ['best']",
    ("files", "str"): "a pattern, such as 'data/*.tar', or a list of files",
    ("level", "str"): "a level, such as 'O1' or 'bf16'",
    ("amp", "str"): "a level, such as 'O1' or 'bf16', or an Amp",
    ("devices", "Mapping"): "names and devices, such as {'layers.0': 'cuda:0'}",
}
# The kinds of which a value's type is not enough -> the types of which it is.
SURE: dict[str, Any] = {"int": (int,), "float": (float, int), "bool": (bool,), "device": ()}
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
METHOD = {word: remedy for remedy, words in METHODS.items() for word in words.split()}


class NoSuchMethod(ConfigError, AttributeError):
    """The one-line error for an unknown method. It is an AttributeError, too, so that hasattr() returns False."""


def checked(function: Function, beside: Mapping[str, Any] = {}, *, late: bool = False) -> Function:
    """Returns the function with a check of its arguments: a call that does not fit the signature, or a value that does
    not fit its annotation, raises ConfigError. beside: other functions, one of which may have a wrong name. late: the
    values are checked if the function has failed: for what is called in each step."""
    signature, name = inspect.signature(function), _name(function)
    kinds = {each.name: _kinds(each) for each in signature.parameters.values()}
    checks, known = any(kinds.values()) and not late, set[tuple[Any, ...]]()
    errors = (TypeError, AttributeError) if late else TypeError

    def bound_and_sure(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[inspect.BoundArguments, bool]:
        bound, is_sure = signature.bind(*given, **named), True
        for argument, values in bound.arguments.items():
            for word, value in _each(signature.parameters[argument], values) if (of := kinds[argument]) else ():
                kind = next((kind for kind in of if _fits(value, kind)), None)
                if kind is None:
                    raise _wrong(word, value, RIGHT.get((word, of[0])) or " or ".join(KINDS[each][1] for each in of))
                if not isinstance(value, SURE.get(kind, object)):
                    is_sure = False
                    if values is value and kind in ("int", "float"):
                        bound.arguments[word] = SURE[kind][0](value)  # 2.0, or a number of numpy or torch
        return bound, is_sure

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            form = (*map(type, given), *named, *map(type, named.values())) if checks else ()
            if not checks or form in known:  # of each step, without the 20 microseconds of a check
                return function(*given, **named)
            bound, is_sure = bound_and_sure(given, named)
            if is_sure:
                known.add(form)
            return function(*bound.args, **bound.kwargs)
        except errors as error:
            if (wrong := _misfit(name, signature, given, named, beside)) is not None:
                raise wrong from error.__cause__
            if late:
                bound_and_sure(given, named)
            raise

    return call  # type: ignore[return-value]


def checked_class(cls: Class) -> Class:
    """Checks the arguments of all public methods of a class."""
    public = {name: method for name, method in vars(cls).items() if isinstance(method, FunctionType) and name[0] != "_"}
    for name, method in [("__init__", cls.__init__), *public.items()]:  # type: ignore[misc]
        setattr(cls, name, checked(method, public))
    for name in [name for name, method in vars(cls).items() if isinstance(method, classmethod) and name[0] != "_"]:
        setattr(cls, name, classmethod(checked(vars(cls)[name].__func__)))
    return cls


def _name(function: Any) -> str:
    owner, _, name = function.__qualname__.rpartition(".")
    return owner if name == "__init__" else f"{owner.lower().removesuffix('handle')}.{name}".lstrip(".")


def _kinds(parameter: inspect.Parameter) -> list[str]:
    """Returns the parts of an annotation such as `int | None`; none if not all of them are checked."""
    parts = re.split(r" \| (?![^[]*\])", str(parameter.annotation))
    kinds = [part.partition("[")[0].rpartition(".")[2] for part in parts]
    if "device" in kinds:  # not each text is the name of one
        kinds = [kind for kind in kinds if kind != "str"]
    return kinds if all(kind in KINDS for kind in kinds) else []


def _each(parameter: inspect.Parameter, given: Any) -> Iterable[tuple[str, Any]]:
    """Returns what was passed for a parameter, with the names: *units and **options take several values."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return [(parameter.name, value) for value in given]
    return given.items() if parameter.kind is parameter.VAR_KEYWORD else [(parameter.name, given)]


def _is_a(value: Any, name: str) -> bool:
    """isinstance() by the name of the class, which need not be imported."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


def _fits(value: Any, kind: str) -> bool:
    try:
        return bool(KINDS[kind][0](value))
    except (TypeError, ValueError, RuntimeError, OverflowError):  # float([]), float('a'), of a vector, int(inf)
        return False


def _misfit(
    name: str, signature: inspect.Signature, given: Any, named: Mapping[str, Any], beside: Mapping[str, Any]
) -> ConfigError | None:
    """Returns the error of a call that does not fit the signature; None if it fits."""
    try:
        signature.bind(*given, **named)
        return None
    except TypeError as error:
        problem = str(error)
    takes = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    known = [each.name for each in takes]
    for word in named.keys() - {*known}:
        ours = [each for each in re.findall(r"(\w+)=", MEANT.get(word, "")) if each in known and name != "Trainer"]
        remedy = f"Write {ours[0]}=...." if ours else _remedy(word, known, beside)
        return ConfigError(f"{name}: {word!r} is not an argument here. {remedy}")
    needed = [each for each in takes if each.default is each.empty]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    words = [f"{e.name}=..." if e.kind is e.KEYWORD_ONLY else e.name for e in needed if e.kind not in several]
    right = ", ".join(words) or "name=value" * bool(needed)
    return ConfigError(f"{name}: {problem}. Write {name}({right}){', and all else by name' * bool(takes)}.")


def can_take(function: Any, *given: str) -> bool:
    """Returns whether a user's function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature
        return True
    return True


def check_takes(where: str, function: Any, *given: str) -> None:
    """Raises ConfigError for a user's function that cannot be called with these arguments."""
    if not can_take(function, *given):
        call = f"{getattr(function, '__name__', type(function).__name__)}({', '.join(arguments_of(function))})"
        raise ConfigError(f"{where}: {call} cannot be called with ({', '.join(given)}). Give it these parameters.")


def check_arguments(
    where: str, given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, Any] = {}
) -> None:
    """Raises ConfigError for an unknown keyword. elsewhere: a mapping from a function's name to another function that
    may take the keyword."""
    for word in given:
        if word not in known:
            raise ConfigError(f"{where}: {word!r} is not an argument here. {_remedy(word, known, elsewhere)}")


def check_counts(**counts: int | None) -> None:
    """Raises ConfigError for a number below 1, by the name of its argument."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}: {count} is less than 1. Use 1 or more; or leave it out.")


def _remedy(word: str, known: Collection[str], elsewhere: Mapping[str, Any]) -> str:
    for name, function in elsewhere.items():
        if word in inspect.signature(function).parameters:
            return f"It is one of {name}()."
    if word in MEANT:
        return f"{MEANT[word]}."
    return did_you_mean(word, known, f"There are: {', '.join(known)}.")


def no_such_method(word: str) -> AttributeError:
    """Returns a Trainer's error for an unknown method."""
    if word in METHOD:
        return NoSuchMethod(f"Trainer.{word}: it is not a method here. {METHOD[word]}.")
    return AttributeError(f"'Trainer' object has no attribute {word!r}")


def arguments_of(function: Any) -> list[str]:
    """Returns the names of the arguments that may be passed by name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in named and p.name != "self"]


def check_parts(scheduler: Any, forward: Any, step: Any) -> None:
    """Raises ConfigError for a name or a class in place of an object."""
    check_takes("forward", forward, "trainer", "batch")
    check_takes("step", step, "trainer", "batch")
    steps = getattr(scheduler, "step", None)
    if scheduler is not None and (isinstance(scheduler, type) or not callable(steps)):
        raise _wrong("scheduler", scheduler, "an object of torch.optim.lr_scheduler, such as StepLR(optimizer, 30)")
    if scheduler is not None and _is_a(scheduler, "ReduceLROnPlateau"):
        if scheduler.mode != "min":
            raise ConfigError(
                "scheduler: ReduceLROnPlateau(mode='max') cannot look at the loss. Name what it looks at: "
                "on_epoch=[plateau(scheduler, 'val_accuracy')], state={'plateau': scheduler}."
            )
    elif steps is not None and not can_take(steps):
        raise ConfigError(
            f"scheduler: {type(scheduler).__name__}.step() wants arguments. Call it in on_epoch=[lambda trainer, row: "
            "scheduler.step(...)], and have it saved: state={'schedule': scheduler}."
        )


def check_trains(model: torch.nn.Module, loss: Any, optimizer: Any) -> None:
    """Raises ConfigError if the optimizer has no parameter of the model, nor of a loss that has parameters."""
    modules = [part for part in (model, loss) if _is_a(part, "Module")]
    ours = {id(parameter) for module in modules for parameter in module.parameters()}
    theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if ours and not ours & theirs:
        raise ConfigError(
            f"optimizer: its {len(theirs)} parameters are not of this model, which it would not train. Make it of "
            "model.parameters(), after the model is complete; a copy of the model has parameters of its own."
        )


def _wrong(what: str, given: Any, right: str) -> ConfigError:
    if isinstance(given, type):
        return ConfigError(f"{what}: {given.__name__} is a class. Pass {right}.")
    shown = f"the word {given!r}" if isinstance(given, str) else f"a {type(given).__name__}"
    shown = f"{given!r}" if isinstance(given, (int, float)) else shown
    return ConfigError(f"{what}: is {shown}. Pass {right}.")


def check_options(where: str, options: Mapping[str, Any], target: Any) -> None:
    """Raises ConfigError for an option that the target does not take."""
    takes = [*inspect.signature(target).parameters][1:]
    for name in options:
        if name not in takes:
            remedy = did_you_mean(name, takes, f"There are: {', '.join(takes)}.")
            raise ConfigError(f"{where}.{name}: {target.__name__} takes no such argument. {remedy}")
