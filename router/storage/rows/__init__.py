"""Rows: conversion of values to columns and back; features and traces are packed into bytes."""
